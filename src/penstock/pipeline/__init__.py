"""Pipelines: projects of Spark Declarative Pipelines, made from templates and run with everything set up.

There is no language of our own. A project is what Spark's documentation describes: `spark-pipeline.yml` and files under
`transformations/`; `spark-pipelines run` runs it as well.
"""
