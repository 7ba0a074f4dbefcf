"""Spark's side of Penstock: the data source `format("penstock")`, found by Spark through `pyspark_penstock`.

Needs `pip install penstock[spark]`. Nothing here imports the broker: they meet on the wire.

    from penstock.spark import session

    spark = session()
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", "localhost:9092")
    reader.option("subscribe", "orders").load().show()
"""

from penstock.spark.launch import environment, session

__all__ = ["environment", "session"]
