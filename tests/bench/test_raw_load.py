"""Raw requests: what was not stored, or not read whole, must not be counted."""

from contextlib import closing

import pytest
from bench.raw_load import RawClient, next_offset, produce_frame
from bench.waiting_load import deliver_to_waiting

from penstock.base.errors import ErrorCode
from penstock.testing import broker
from penstock.wire.batch import Record, build_batch


@pytest.fixture
def port():
    with broker({"auto.create.topics.enable": False}) as running:
        running.create_topic("t", partitions=2)
        yield int(running.bootstrap_servers.split(":")[1])


@pytest.fixture
def client(port):
    with closing(RawClient(port)) as client:
        yield client


def batch(base_offset, records):
    offsets = range(base_offset, base_offset + records)
    return bytes(build_batch([Record(offset, 0, None, b"value") for offset in offsets], base_offset=base_offset))


def test_reading_goes_on_after_the_last_whole_batch():
    first, second = batch(0, 3), batch(3, 2)
    assert next_offset(memoryview(first + second), 0) == 5
    assert next_offset(memoryview(first + second[:-1]), 0) == 3
    assert next_offset(memoryview(first + second[:40]), 0) == 3


def test_reading_stays_where_it_is_when_nothing_came():
    assert next_offset(memoryview(b""), 7) == 7


def test_what_was_produced_is_fetched_to_its_end(client):
    client.produce([produce_frame("t", record_bytes=100, records=10)] * 7, in_flight=3)
    client.fetch("t", end=70, bytes_max=2_500)  # Two batches, and a part of a third where a broker sends parts.


def test_a_topic_that_ends_too_early_fails_the_load(client):
    client.produce([produce_frame("t", record_bytes=100, records=10)])
    with pytest.raises(RuntimeError, match="nothing at offset 10 of 11"):
        client.fetch("t", end=11, bytes_max=1 << 20)


def test_one_refused_request_fails_the_load(client):
    good = produce_frame("t", partition=1, record_bytes=100, records=1)
    bad = produce_frame("t", partition=2, record_bytes=100, records=1)
    with pytest.raises(RuntimeError, match="unknown_topic_or_partition"):
        client.produce([good, bad, good], in_flight=3)


def test_a_topic_is_led_when_all_its_partitions_answer(client):
    assert client.end_errors("t", partitions=2) == set()
    assert client.end_errors("t", partitions=3) == {ErrorCode.unknown_topic_or_partition}


def test_every_waiting_consumer_is_given_every_record(port):
    delivered = deliver_to_waiting(port, "t", consumers=5, seconds=0.2)
    assert delivered.count == 5 * 4
