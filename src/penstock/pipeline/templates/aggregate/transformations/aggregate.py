"""Events in, counts by window out, and a second copy of those that are alerts.

A window's count is written once, when no event can come to it any more: when an event is seen that is later than its
end by `late`. Events that come later than that are not counted; a run shows how many.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from penstock.spark.dead_letters import accepted, dead_letters, judged

spark = SparkSession.active()
brokers = {"kafka.bootstrap.servers": spark.conf.get("penstock.bootstrap.servers")}
schema = StructType.fromDDL(spark.conf.get("penstock.schema"))
by = [field.strip() for field in spark.conf.get("penstock.by").split(",")]

dp.create_sink("counts", "penstock", brokers)
dp.create_sink("dead_letters", "penstock", {**brokers, "topic": spark.conf.get("penstock.dead_letters")})


def events() -> DataFrame:
    records = (
        spark.readStream.format("penstock")
        .options(**brokers)
        .option("subscribe", spark.conf.get("penstock.topic"))
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    is_strict = spark.conf.get("penstock.strict") == "true"
    return judged(records, schema, is_strict=is_strict)


@dp.append_flow(target="counts")
def counts_and_alerts() -> DataFrame:
    counted = (
        accepted(events())
        .select(sql.col("timestamp").alias("record_time"), "parsed.*")
        .where(spark.conf.get("penstock.where"))
        .withColumn("event_time", sql.expr(spark.conf.get("penstock.time")))
        .withWatermark("event_time", spark.conf.get("penstock.late"))
        .groupBy(sql.window("event_time", spark.conf.get("penstock.window")), *by)
        .count()
    )
    is_alert = sql.col("count") >= int(spark.conf.get("penstock.alert_from"))
    # Both go out in one transaction: whoever sees an alert can see its count.
    topics = sql.array(
        sql.lit(spark.conf.get("penstock.counts")), sql.when(is_alert, sql.lit(spark.conf.get("penstock.alerts")))
    )
    return counted.select(
        sql.explode(sql.array_compact(topics)).alias("topic"),
        sql.concat_ws("/", *by).alias("key"),
        sql.to_json(sql.struct("window.start", "window.end", *by, "count")).alias("value"),
    )


@dp.append_flow(target="dead_letters")
def not_events() -> DataFrame:
    return dead_letters(events(), has_headers=True)
