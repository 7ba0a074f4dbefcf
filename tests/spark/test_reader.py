"""A task reads exactly its range in little memory, whatever the partition holds, and survives its broker's breaks."""

import tracemalloc

import pyarrow as pa
import pytest

from penstock.base.errors import BadPeer
from penstock.spark import reader
from penstock.spark.brokers import Connection
from penstock.spark.options import Isolation
from penstock.spark.plan import OffsetRange
from penstock.spark.reader import Wanted, read


@pytest.fixture
def wanted(penstock_broker, produce):
    """5,000 records, of which some were in batches with their neighbours and some were not."""
    topic = penstock_broker.create_topic()
    for start in range(0, 5000, 1000):
        produce(topic, [(0, None, b"%d" % number, 0, []) for number in range(start, start + 1000)])
    return Wanted(
        penstock_broker.bootstrap_servers,
        OffsetRange(topic, 0, 0, 5000),
        Isolation.READ_UNCOMMITTED,
        False,
        True,
        60_000,
    )


def offsets(wanted: Wanted) -> list[int]:
    return [offset for batch in read(wanted) for offset in batch["offset"].to_pylist()]


@pytest.mark.parametrize(("start", "end"), [(0, 5000), (0, 1), (4999, 5000), (1, 4999), (999, 1001), (1500, 1500)])
def test_exactly_the_range(wanted, start, end):
    assert offsets(wanted._replace(range=wanted.range._replace(start=start, end=end))) == list(range(start, end))


def test_many_small_fetches_are_one_range(wanted, monkeypatch):
    monkeypatch.setattr(reader, "FETCH_BYTES_MIN", 100)
    monkeypatch.setattr(reader, "FETCH_BYTES_MAX", 1000)
    assert offsets(wanted) == list(range(5000))


def test_a_connection_that_breaks_costs_nothing_but_time(wanted, monkeypatch):
    monkeypatch.setattr(reader, "FETCH_BYTES_MAX", 20_000)
    monkeypatch.setattr(reader, "FETCH_BYTES_MIN", 20_000)
    count, receive = [0], Connection.receive

    def breaks(self, api_key, version, number, buffer=None):
        count[0] += 1
        if count[0] % 3 == 0:
            self.close()
            raise BadPeer("cut")
        return receive(self, api_key, version, number, buffer)

    monkeypatch.setattr(Connection, "receive", breaks)
    assert offsets(wanted) == list(range(5000))
    assert count[0] > 5


def test_memory_does_not_grow_with_the_partition(penstock_broker, produce):
    topic = penstock_broker.create_topic()
    produce(topic, [(0, None, bytes(10_000), 0, [])] * 4000)
    whole = OffsetRange(topic, 0, 0, 4000)
    wanted = Wanted(penstock_broker.bootstrap_servers, whole, Isolation.READ_UNCOMMITTED, False, True, 60_000)
    arrow_bytes = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        most = rows = 0
        for batch in read(wanted):
            rows += batch.num_rows
            most = max(most, pa.total_allocated_bytes() - arrow_bytes + tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert rows == 4000
    # 40 MB were read. A broker in this process has its own copies of replies among them.
    assert most < 30_000_000
