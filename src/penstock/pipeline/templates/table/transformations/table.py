from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import table

spark = SparkSession.active()


@dp.temporary_view
def all_records() -> DataFrame:
    """Nothing is copied: Spark reads the lake's files, and what is not in them from the brokers."""
    return table(
        spark,
        spark.conf.get("penstock.topic"),
        lake=str(Path(spark.conf.get("penstock.lake")).absolute()),
        bootstrap=spark.conf.get("penstock.bootstrap.servers"),
    )


@dp.materialized_view(name=spark.conf.get("penstock.table"), partition_cols=["day"])
def records() -> DataFrame:
    """Keys and values as text. Change it to what they are: JSON to columns, the last record of each key, sums a day."""
    return spark.read.table("all_records").selectExpr(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "CAST(key AS STRING) AS key",
        "CAST(value AS STRING) AS value",
        "headers",
        "day",
    )
