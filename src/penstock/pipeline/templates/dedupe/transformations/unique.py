"""Records in, those out whose key was not seen within the window. Those without a key are dead letters."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from penstock.spark.dead_letters import accepted, dead_letters

spark = SparkSession.active()
brokers = {"kafka.bootstrap.servers": spark.conf.get("penstock.bootstrap.servers")}

dp.create_sink("unique", "penstock", {**brokers, "topic": spark.conf.get("penstock.target")})
dp.create_sink("dead_letters", "penstock", {**brokers, "topic": spark.conf.get("penstock.dead_letters")})


def keyed() -> DataFrame:
    records = (
        spark.readStream.format("penstock")
        .options(**brokers)
        .option("subscribe", spark.conf.get("penstock.topic"))
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    has_none = sql.col("unique_key").isNull()
    return records.withColumn("unique_key", sql.expr(spark.conf.get("penstock.key"))).withColumn(
        "reason", sql.when(has_none, sql.lit("no key: " + spark.conf.get("penstock.key")))
    )


@dp.append_flow(target="unique")
def first_of_each_key() -> DataFrame:
    return (
        accepted(keyed())
        .withWatermark("timestamp", spark.conf.get("penstock.window"))
        .dropDuplicatesWithinWatermark(["unique_key"])
        .select("key", "value", "headers", "timestamp")
    )


@dp.append_flow(target="dead_letters")
def without_key() -> DataFrame:
    return dead_letters(keyed(), has_headers=True)
