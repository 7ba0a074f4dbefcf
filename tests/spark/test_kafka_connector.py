"""Spark's own Kafka connector, unmodified, writes to Penstock; ours reads what it wrote."""

import pytest
from pyspark.sql.functions import col


@pytest.fixture
def frame(spark):
    return spark.range(500, numPartitions=2).select(
        col("id").cast("string").cast("binary").alias("key"),
        (col("id") * 2).cast("string").cast("binary").alias("value"),
    )


def pairs(frame) -> list:
    return sorted((int(row.key), int(row.value)) for row in frame.collect())


def test_a_batch(frame, load, kafka_connector, penstock_broker):
    name = penstock_broker.create_topic(partitions=3)
    writer = frame.write.format(kafka_connector).option("topic", name)
    writer.option("kafka.bootstrap.servers", penstock_broker.bootstrap_servers).save()
    assert pairs(load("penstock", subscribe=name)) == pairs(frame)


def test_a_stream_from_topic_to_topic(frame, load, kafka_connector, penstock_broker, tmp_path):
    source, target = penstock_broker.create_topic(partitions=3), penstock_broker.create_topic(partitions=2)
    address = penstock_broker.bootstrap_servers
    frame.write.format(kafka_connector).option("topic", source).option("kafka.bootstrap.servers", address).save()
    stream = load(kafka_connector, is_streaming=True, subscribe=source, startingOffsets="earliest")
    writer = stream.select("key", "value").writeStream.format(kafka_connector).option("topic", target)
    writer = writer.option("kafka.bootstrap.servers", address).option("checkpointLocation", str(tmp_path))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert pairs(load("penstock", subscribe=target)) == pairs(frame)
