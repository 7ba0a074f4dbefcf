from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
brokers = spark.conf.get("penstock.bootstrap.servers")

dp.create_sink(
    "unique",
    "penstock",
    {"kafka.bootstrap.servers": brokers, "topic": spark.conf.get("penstock.target")},
)


@dp.append_flow(target="unique")
def first_of_each_key() -> DataFrame:
    records = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", spark.conf.get("penstock.topic"))
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    return (
        records.withWatermark("timestamp", spark.conf.get("penstock.window"))
        .dropDuplicatesWithinWatermark(["key"])
        .select("key", "value", "headers", "timestamp")
    )
