"""`format("penstock")` as a sink in a real Spark: batches, streams that start again, and what is refused."""

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.functions import array as array_of
from pyspark.sql.functions import col, lit, struct, timestamp_millis

TIME_MS = 1_760_000_000_000


@pytest.fixture
def numbers(spark):
    text = col("id").cast("string")
    return spark.range(1000, numPartitions=3).select(text.alias("key"), (col("id") * 2).cast("string").alias("value"))


@pytest.fixture
def save(penstock_broker):
    def save(frame, **options):
        writer = frame.write.format("penstock").mode("append")
        writer = writer.option("kafka.bootstrap.servers", penstock_broker.bootstrap_servers)
        writer.options(**{name.replace("__", "."): value for name, value in options.items()}).save()

    return save


def values(frame) -> list[int]:
    return sorted(int(row.value) for row in frame.collect())


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_batch_goes_where_kafkas_connector_sends_it(numbers, save, load, kafka_connector, penstock_broker, delivery):
    ours, theirs = (penstock_broker.create_topic(partitions=3) for _ in range(2))
    save(numbers, topic=ours, delivery=delivery, kafka__compression__type="zstd")
    writer = numbers.write.format(kafka_connector).option("topic", theirs)
    writer.option("kafka.bootstrap.servers", penstock_broker.bootstrap_servers).save()
    found = [
        sorted((row.partition, row.key, row.value) for row in load(kafka_connector, subscribe=topic).collect())
        for topic in (ours, theirs)
    ]
    assert len(found[0]) == 1000
    assert found[0] == found[1]


def test_every_column(spark, save, load, penstock_broker):
    names = [penstock_broker.create_topic(partitions=3) for _ in range(2)]
    text = col("id").cast("string").cast("binary")
    frame = spark.range(9).select(
        array_of(lit(names[0]), lit(names[1]))[(col("id") % 2).cast("int")].alias("topic"),
        (col("id") % 3).cast("int").alias("partition"),
        text.alias("value"),
        timestamp_millis(col("id") + TIME_MS).alias("timestamp"),
        array_of(struct(lit("n").alias("key"), col("id").cast("string").cast("binary").alias("value"))).alias(
            "headers"
        ),
    )
    save(frame, delivery="at-least-once")
    found = load("penstock", subscribe=",".join(names), includeHeaders="true").collect()
    assert len(found) == 9
    for row in found:
        number = int(row.value)
        assert (row.topic, row.partition) == (names[number % 2], number % 3)
        assert row.timestamp.timestamp() * 1000 == TIME_MS + number
        assert [tuple(header) for header in row.headers] == [("n", row.value)]


def test_a_job_that_fails_has_written_nothing(spark, save, load, penstock_broker):
    name = penstock_broker.create_topic()
    bad = spark.range(100, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value", "CASE WHEN id = 99 THEN 7 ELSE 0 END AS partition"
    )
    with pytest.raises(PythonException, match="1 partitions, and a row is for partition 7"):
        save(bad, topic=name)
    assert load("penstock", subscribe=name, kafka__isolation__level="read_committed").count() == 0


def test_a_stream_is_written_once_though_its_last_batch_is_run_again(
    numbers, save, load, kafka_connector, penstock_broker, tmp_path
):
    source, target = penstock_broker.create_topic(partitions=2), penstock_broker.create_topic(partitions=2)

    def run() -> None:
        stream = load(
            "penstock", is_streaming=True, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=600
        )
        writer = stream.select("key", "value").writeStream.format("penstock").option("topic", target)
        writer = writer.option("kafka.bootstrap.servers", penstock_broker.bootstrap_servers)
        writer = writer.option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    save(numbers, topic=source, delivery="at-least-once")
    run()
    # As if the driver had died behind the sink's commit, before Spark has noted it.
    newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    committed = {"subscribe": target, "kafka__isolation__level": "read_committed"}
    assert values(load("penstock", **committed)) == list(range(0, 2000, 2))
    assert values(load(kafka_connector, **committed)) == list(range(0, 2000, 2))


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("1 AS value", {"topic": "t"}, "column value must be binary or string, not int"),
        ("'x' AS key", {"topic": "t"}, "no column value"),
        ("'x' AS value", {}, "there is no topic"),
        ("'x' AS value", {"topic": "t", "delivery": "twice"}, "exactly-once or at-least-once"),
        ("'x' AS value", {"topic": "t", "kafka__compression__type": "rar"}, "none, gzip"),
    ],
)
def test_what_cannot_be_written_is_refused(spark, save, query, options, message):
    with pytest.raises(AnalysisException, match=message):
        save(spark.sql(f"SELECT {query}"), **options)
