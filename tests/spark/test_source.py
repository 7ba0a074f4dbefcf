"""`format("penstock")` in a real Spark, row for row against what was written and against Spark's own connector."""

import json
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from penstock.spark import lag

START_MS = 1_760_000_000_000
COUNT = 900


def variety(number: int) -> tuple:
    """Nulls, empties, equal and different sizes, headers with and without values."""
    key = [None, b"", b"key-%d" % number][number % 3]
    value = [None, b"", b"%d " % number * (number % 50), b"v" * 100][number % 4]
    headers = [[], [("h", b"%d" % number), ("h", None)], [("empty", b"")]][number % 3]
    return number % 3, key, value, START_MS + number * 10, headers


@pytest.fixture(scope="module")
def topic(penstock_broker, request):
    """Three partitions, each with batches of every codec."""
    name = penstock_broker.create_topic(penstock_broker.unused_topic_name("variety"), partitions=3)
    for codec, start in (("none", 0), ("gzip", 300), ("lz4", 400), ("snappy", 600), ("zstd", 700)):
        producer = Producer(
            {"bootstrap.servers": penstock_broker.bootstrap_servers, "compression.type": codec, "log_level": 0}
        )
        end = {0: 300, 300: 400, 400: 600, 600: 700, 700: COUNT}[start]
        for number in range(start, end):
            partition, key, value, timestamp, headers = variety(number)
            producer.produce(name, value, key, partition, timestamp=timestamp, headers=headers)
        assert producer.flush(60) == 0
    return name


def rows(frame) -> list:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def same_rows(load, kafka_connector, **options) -> list:
    """What both connectors give, which must be the same."""
    ours = load("penstock", **options)
    theirs = load(kafka_connector, **options)
    assert ours.schema == theirs.schema
    found = rows(ours)
    assert found == rows(theirs)
    return found


def test_everything_as_it_was_written(load, topic):
    found = rows(load("penstock", subscribe=topic, includeHeaders=True))
    written = [[variety(number) for number in range(COUNT) if number % 3 == partition] for partition in range(3)]
    assert len(found) == COUNT
    for row in found:
        _, key, value, timestamp, headers = written[row.partition][row.offset]
        assert (row.key, row.value) == (key, value)
        assert row.timestamp.timestamp() * 1000 == timestamp
        assert row.timestampType == 0
        assert [tuple(header) for header in row.headers or []] == headers


def test_as_kafkas_connector_reads_it(load, kafka_connector, topic):
    found = same_rows(load, kafka_connector, subscribe=topic, includeHeaders="true")
    assert len(found) == COUNT


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"startingOffsets": {"0": 10, "1": -2, "2": 299}, "endingOffsets": {"0": 11, "1": 5, "2": -1}}, 7),
        ({"startingTimestamp": START_MS + 10 * 600, "endingTimestamp": START_MS + 10 * 700}, 100),
        ({"startingOffsetsByTimestamp": {str(each): START_MS + 10 * 890 for each in range(3)}}, 10),
        ({"endingOffsets": {"0": 290, "1": 290, "2": 290}, "minPartitions": 10}, 870),
    ],
)
def test_from_where_to_where(load, kafka_connector, topic, options, count):
    options = {
        name: json.dumps({topic: value}) if isinstance(value, dict) else value for name, value in options.items()
    }
    assert len(same_rows(load, kafka_connector, subscribe=topic, **options)) == count


def test_patterns_and_assigned_partitions(load, kafka_connector, topic):
    assert len(same_rows(load, kafka_connector, subscribePattern=f".*{topic[-6:]}")) == COUNT
    assert len(same_rows(load, kafka_connector, assign=json.dumps({topic: [0, 2]}))) == COUNT * 2 // 3


def test_a_large_partition_is_shared_by_tasks(load, topic):
    frame = load("penstock", subscribe=topic, minPartitions=7, maxRecordsPerPartition=100)
    assert frame.rdd.getNumPartitions() == 9
    assert len({(row.partition, row.offset) for row in frame.collect()}) == COUNT


def test_the_time_of_the_append(load, kafka_connector, penstock_broker, produce):
    name = penstock_broker.create_topic(config={"message.timestamp.type": "LogAppendTime"})
    before = penstock_broker.now_ms()
    produce(name, [(0, None, b"x", 5, [])] * 3, "lz4")
    found = same_rows(load, kafka_connector, subscribe=name)
    assert [row.timestampType for row in found] == [1, 1, 1]
    assert all(row.timestamp.timestamp() * 1000 >= before for row in found)


def test_an_empty_topic_has_no_rows(load, penstock_topic):
    assert load("penstock", subscribe=penstock_topic).collect() == []


def test_filters_reach_the_plan(load, topic):
    frame = load("penstock", subscribe=topic)
    chosen = frame.where(f"topic = '{topic}' and partition in (1, 2) and offset >= 100 and offset < 110")
    assert chosen.rdd.getNumPartitions() == 2
    assert [(row.partition, row.offset) for row in rows(chosen)] == [(p, o) for p in (1, 2) for o in range(100, 110)]
    late = frame.where(f"timestamp >= timestamp_millis({START_MS + 10 * 870})")
    assert len(late.collect()) == 30


def test_a_filter_on_time_starts_late_and_is_still_checked(load, penstock_broker, produce):
    name = penstock_broker.create_topic()
    produce(name, [(0, None, b"%d" % at, START_MS + at, []) for at in (1, 50, 2, 60, 3)])
    found = load("penstock", subscribe=name).where(f"timestamp >= timestamp_millis({START_MS + 50})")
    assert [row.value for row in rows(found)] == [b"50", b"60"]


def test_works_with_filters_switched_off(spark, load, topic):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert load("penstock", subscribe=topic).where("offset < 5").count() == 15
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# Streams --------------------------------------------------------------------------------------------------------------


def run_available(frame, checkpoint, table=None):
    """Run a query over all there is now, to its end; `table` keeps what it read."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    writer = writer.format("memory").queryName(table) if table else writer.format("noop")
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def test_a_stream_goes_on_where_it_stopped(spark, load, produce, penstock_broker, tmp_path):
    name = penstock_broker.create_topic(partitions=2)
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 60}
    produce(name, [(number % 2, None, b"%d" % number, None, []) for number in range(200)])
    seen = []
    writer = load("penstock", is_streaming=True, **options).writeStream.option("checkpointLocation", str(tmp_path))

    def take(batch, _) -> None:
        seen.append(sorted(int(row.value) for row in batch.collect()))

    query = writer.foreachBatch(take).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert [len(batch) for batch in seen] == [60, 60, 60, 20]
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    (source,) = progress[0]["sources"]
    assert json.loads(source["endOffset"]) == {name: {"0": 30, "1": 30}}
    assert json.loads(source["latestOffset"]) == {name: {"0": 100, "1": 100}}
    assert [sum(lag(each).values()) for each in progress] == [140, 80, 20, 0]
    produce(name, [(0, None, b"200", None, [])])
    query = writer.foreachBatch(take).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(number for batch in seen for number in batch) == list(range(201))


def test_a_stream_as_kafkas_connector_has_it(spark, load, kafka_connector, topic, tmp_path):
    tables = []
    for format in ("penstock", kafka_connector):
        frame = load(
            format, is_streaming=True, subscribe=topic, startingOffsets="earliest", includeHeaders="true",
            maxOffsetsPerTrigger=500,
        )  # fmt: skip
        run_available(frame, tmp_path / format, f"stream_{format}")
        tables.append(rows(spark.table(f"stream_{format}")))
    assert len(tables[0]) == COUNT
    assert tables[0] == tables[1]


def test_a_running_stream_sees_what_comes_and_new_partitions(spark, load, produce, penstock_broker, tmp_path):
    name = penstock_broker.create_topic()
    frame = load("penstock", is_streaming=True, subscribe=name)
    writer = frame.writeStream.format("memory").queryName("live").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="0 seconds").start()

    def wait_for(values: set[bytes]) -> None:
        give_up_at = time.monotonic() + 120
        while {row.value for row in spark.table("live").collect()} != values:
            assert query.isActive and time.monotonic() < give_up_at, query.exception()
            time.sleep(0.1)

    try:
        while not query.lastProgress:  # It starts at the latest offset: from then on.
            time.sleep(0.1)
        produce(name, [(0, None, b"one", None, [])])
        wait_for({b"one"})
        admin = AdminClient({"bootstrap.servers": penstock_broker.bootstrap_servers})
        admin.create_partitions([NewPartitions(name, 2)])[name].result(60)
        produce(name, [(1, None, b"two", None, [])])
        wait_for({b"one", b"two"})
    finally:
        query.stop()


# What goes wrong ------------------------------------------------------------------------------------------------------


def delete_before(penstock_broker, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": penstock_broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(60)
    spec = {TopicPartition(topic, 0): OffsetSpec.earliest()}
    assert next(iter(admin.list_offsets(spec).values())).result(60).offset == offset


def test_lost_records_stop_the_query_unless_they_may_be_lost(load, produce, penstock_broker):
    name = penstock_broker.create_topic()
    produce(name, [(0, None, b"%d" % number, None, []) for number in range(10)])
    delete_before(penstock_broker, name, 4)
    options = {"subscribe": name, "startingOffsets": json.dumps({name: {"0": 1}})}
    with pytest.raises(PythonException, match=r"offset 1 of .* is gone, what is left starts at 4"):
        load("penstock", **options).collect()
    found = load("penstock", **options, failOnDataLoss="false")
    assert [row.offset for row in rows(found)] == list(range(4, 10))


def test_a_topic_made_anew_stops_the_stream(load, produce, penstock_broker, tmp_path):
    name = penstock_broker.create_topic()
    produce(name, [(0, None, b"x", None, [])] * 10)
    frame = load("penstock", is_streaming=True, subscribe=name, startingOffsets="earliest")
    run_available(frame, tmp_path)
    penstock_broker.delete_topic(name)
    penstock_broker.create_topic(name)
    with pytest.raises(StreamingQueryException, match="was read up to 10 and now ends at 0"):
        run_available(frame, tmp_path)


def test_errors_are_in_words(load, penstock_broker):
    with pytest.raises(AnalysisException, match="exactly one of the options subscribe"):
        load("penstock").collect()
    with pytest.raises(AnalysisException, match="topic no-such-topic: unknown_topic_or_partition"):
        load("penstock", subscribe="no-such-topic").collect()
