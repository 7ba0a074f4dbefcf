"""Archive, table and replay with a real Spark: every record once, as it was, on both sides of the seam."""

import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from penstock.spark import history, records, replayed, table
from penstock.spark.lake_files import compression_of, read_range
from penstock.spark.lake_store import LakeStore
from penstock.spark.replay import TooFewPartitions
from penstock.spark.seam import Gap

DAY_MS = 86_400_000
NOW_MS = int(time.time() * 1000)
COLUMNS = ["key", "value", "partition", "timestamp", "timestampType", "headers"]


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


@pytest.fixture
def topic(penstock_broker):
    return penstock_broker.create_topic(partitions=2)


@pytest.fixture
def archive(spark, penstock_broker, topic, lake, tmp_path):
    """Runs an archive over what is there now, in several batches."""

    def archive(checkpoint="archive", batch=40, **options):
        frame = records(
            spark, topic, lake=lake, bootstrap=penstock_broker.bootstrap_servers, max_offsets_per_trigger=batch
        )
        query = frame.writeStream.format("penstock-lake").option("path", lake).options(**options)
        query = query.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination(240)
        return query

    return archive


def some(start, end) -> list[tuple]:
    """Records of all kinds: without key, without value, without headers, empty ones, of several days."""
    return [
        (
            number % 2,
            None if number % 3 == 0 else b"k%d" % number,
            None if number % 5 == 0 else b"" if number % 7 == 0 else b"v%d" % number,
            NOW_MS - (number % 4) * DAY_MS,
            None if number % 4 == 0 else [("a", b"%d" % number), ("b", None)],
        )
        for number in range(start, end)
    ]


def rows_of(frame) -> list[tuple]:
    found = frame.collect()
    assert len({(row.partition, row.offset) for row in found}) == len(found)  # Nothing twice.
    found.sort(key=lambda row: (row.partition, row.offset))
    return [tuple(row[name] for name in COLUMNS) for row in found]


def live(load, topic, **options):
    return rows_of(load("penstock", subscribe=topic, includeHeaders="true", kafka__isolation__level="read_committed"))


def test_a_topic_is_archived_and_read_as_a_table(spark, load, produce, penstock_broker, topic, lake, archive):
    bootstrap = penstock_broker.bootstrap_servers
    assert table(spark, topic, lake=lake, bootstrap=bootstrap).count() == 0
    produce(topic, some(0, 100))
    assert rows_of(table(spark, topic, lake=lake, bootstrap=bootstrap)) == live(load, topic)
    archive(batch=12)
    # Nine batches of two tasks and four days, merged as they came.
    assert len(LakeStore(lake).latest().files) < 4 * 8
    aborted(bootstrap, topic)
    produce(topic, some(100, 150))
    before = table(spark, topic, lake=lake, bootstrap=bootstrap)
    expected = live(load, topic)
    assert rows_of(history(spark, topic, lake=lake)) != expected
    assert rows_of(before) == expected
    archive()
    # The lake has gone on; a table that was made before still has each record once.
    assert rows_of(before) == rows_of(history(spark, topic, lake=lake)) == expected
    archive()  # Nothing new.
    days = history(spark, topic, lake=lake).where("to_date(timestamp) <> day").count()
    assert days == 0
    found = LakeStore(lake).latest()
    names = {str(path.relative_to(lake)) for path in LakeStore(lake).root.rglob("*.parquet")}
    assert names == {each.path for each in found.files} | {each.path for each in found.retired}
    # Retention may delete what the lake has, and does not change the table.
    delete_records(bootstrap, topic, found.ends)
    assert rows_of(table(spark, topic, lake=lake, bootstrap=bootstrap)) == expected
    # But what was deleted before it was archived is missing, and nobody passes over it.
    produce(topic, some(150, 160))
    delete_records(bootstrap, topic, {(topic, 0): -1, (topic, 1): -1})
    with pytest.raises(Gap, match="deleted before it was archived"):
        table(spark, topic, lake=lake, bootstrap=bootstrap)


def test_an_archive_goes_on_where_the_lake_ends_also_without_its_checkpoint(
    spark, load, produce, penstock_broker, topic, lake, archive, tmp_path
):
    produce(topic, some(0, 60))
    archive("first")
    produce(topic, some(60, 80))
    archive("second")
    assert rows_of(history(spark, topic, lake=lake)) == live(load, topic)
    # One that begins at the beginning would have everything twice.
    stream = spark.readStream.format("penstock").option("kafka.bootstrap.servers", penstock_broker.bootstrap_servers)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest").option("includeHeaders", "true")
    query = stream.load().writeStream.format("penstock-lake").option("path", lake)
    query = query.option("checkpointLocation", str(tmp_path / "third")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="a second archive"):
        query.awaitTermination(240)
    assert history(spark, topic, lake=lake).count() == 80


def test_files_of_all_compressions_are_one_lake(spark, load, produce, penstock_broker, topic, lake, archive):
    def add(count, compression):
        produce(topic, [(n % 2, b"k", b"v%d" % n, NOW_MS, [("a", b"%d" % n)]) for n in range(count)])
        archive(batch=20, compression=compression)
        found = LakeStore(lake)
        return sorted(compression_of(found.root, each) for each in found.latest().files)

    # Two tasks in a batch, and a file of each.
    assert add(40, "zstd") == ["zstd"] * 4
    assert add(40, "none") == ["none"]  # All eight are merged.
    assert add(20, "snappy") == ["none", "snappy", "snappy"]
    assert add(20, "lz4") == ["lz4", "lz4", "none", "snappy", "snappy"]
    expected = live(load, topic)
    assert len(expected) == 120
    assert rows_of(table(spark, topic, lake=lake, bootstrap=penstock_broker.bootstrap_servers)) == expected
    values = [
        value
        for partition in (0, 1)
        for each in read_range(LakeStore(lake).root, LakeStore(lake).latest().files, partition, 0, 60)
        for value in each["value"].to_pylist()
    ]
    assert values == [row[COLUMNS.index("value")] for row in expected]


def test_a_lake_is_replayed_as_it_was(spark, load, produce, penstock_broker, topic, lake, archive, tmp_path):
    bootstrap = penstock_broker.bootstrap_servers
    target = penstock_broker.create_topic(partitions=3)
    produce(topic, some(0, 60))
    archive()

    def replay(**options):
        frame = replayed(spark, topic, lake=lake, bootstrap=bootstrap, target=target, **options)
        query = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
        query = query.option("topic", target).option("checkpointLocation", str(tmp_path / "replay"))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination(240)

    replay(max_offsets_per_trigger=25)
    assert live(load, target) == live(load, topic)
    produce(topic, some(60, 80))
    archive()
    started = time.monotonic()
    replay(speed="8/s")
    assert time.monotonic() - started > 2  # 20 at 8 a second, and no credit at the start.
    assert live(load, target) == live(load, topic)
    replay()
    assert live(load, target) == live(load, topic)


def test_a_replay_at_the_speed_of_then(spark, load, produce, penstock_broker, topic, lake, archive, tmp_path):
    target, bootstrap = penstock_broker.create_topic(partitions=2), penstock_broker.bootstrap_servers
    produce(topic, [(number % 2, None, b"v%d" % number, NOW_MS + number * 1000, None) for number in range(11)])
    archive()
    frame = replayed(spark, topic, lake=lake, bootstrap=bootstrap, target=target, speed="4x")
    started = time.monotonic()
    query = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    query = query.option("checkpointLocation", str(tmp_path / "replay")).trigger(availableNow=True).start()
    query.awaitTermination(240)
    assert time.monotonic() - started > 2.4  # Ten seconds of then.
    assert live(load, target) == live(load, topic)


def test_a_replay_needs_as_many_partitions(spark, produce, penstock_broker, topic, lake, archive):
    produce(topic, some(0, 10))
    archive()
    narrow = penstock_broker.create_topic(partitions=1)
    for target, message in ((narrow, "2 partitions in the lake"), ("nowhere", "create nowhere --partitions 2")):
        with pytest.raises(TooFewPartitions, match=message):
            replayed(spark, topic, lake=lake, bootstrap=penstock_broker.bootstrap_servers, target=target)


def test_what_a_lake_does_not_take(spark, penstock_broker, lake, tmp_path):
    rows = spark.readStream.format("rate").load()
    with pytest.raises(Exception, match="whole records"):
        query = rows.writeStream.format("penstock-lake").option("path", lake)
        query.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)
    with pytest.raises(Exception, match=r"penstock\.spark\.history"):
        spark.read.format("penstock-lake").option("path", lake).load().count()


def aborted(bootstrap, topic) -> None:
    """A transaction that nobody sees, in both partitions: offsets that are in no lake."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"abort-{topic}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(topic, b"never", partition=partition)
    producer.flush(30)
    producer.abort_transaction(30)


def delete_records(bootstrap, topic, ends) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = [TopicPartition(name, partition, offset) for (name, partition), offset in ends.items()]
    for future in admin.delete_records(wanted).values():
        future.result(30)
