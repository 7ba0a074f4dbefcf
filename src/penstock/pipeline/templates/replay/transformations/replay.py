from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import replayed

spark = SparkSession.active()
brokers = spark.conf.get("penstock.bootstrap.servers")
target = spark.conf.get("penstock.target")

dp.create_sink("target", "penstock", {"kafka.bootstrap.servers": brokers, "topic": target})


@dp.append_flow(target="target")
def replay() -> DataFrame:
    return replayed(
        spark,
        spark.conf.get("penstock.topic"),
        lake=str(Path(spark.conf.get("penstock.lake")).absolute()),
        bootstrap=brokers,
        target=target,
        speed=spark.conf.get("penstock.speed"),
    )
