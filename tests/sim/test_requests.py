"""The hand-packed requests are, byte for byte, what kio writes."""

import io
from datetime import timedelta

import pytest
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.produce.v9 import request as produce_request
from kio.schema.types import TopicName
from kio.serial import entity_writer
from kio.static.primitive import Records, i16, i32, i32Timedelta, i64

from penstock.base.types import TopicPartition
from penstock.sim.requests import FETCH, PRODUCE, TIMEOUT_MS, fetch_body, produce_body


def written(request) -> bytes:
    out = io.BytesIO()
    entity_writer(type(request))(out, request)
    return out.getvalue()


def duration(milliseconds: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=milliseconds))


@pytest.mark.parametrize("size", [1, 126, 127, 200, 70_000])
def test_produce(size):
    records = bytes(size)
    data = produce_request.PartitionProduceData(index=i32(3), records=Records(records))
    topic = produce_request.TopicProduceData(name=TopicName("topic"), partition_data=(data,))
    request = produce_request.ProduceRequest(acks=i16(-1), timeout=duration(TIMEOUT_MS), topic_data=(topic,))
    assert produce_body(TopicPartition("topic", 3), bytearray(records)) == written(request)
    assert (request.__api_key__, request.__version__) == PRODUCE


def test_fetch():
    wanted = fetch_request.FetchPartition(partition=i32(3), fetch_offset=i64(2**40), partition_max_bytes=i32(1 << 20))
    request = fetch_request.FetchRequest(
        max_wait=duration(500),
        min_bytes=i32(1),
        topics=(fetch_request.FetchTopic(topic=TopicName("t" * 200), partitions=(wanted,)),),
        forgotten_topics_data=(),
    )
    assert fetch_body(TopicPartition("t" * 200, 3), 2**40, 500, 1 << 20) == written(request)
    assert (request.__api_key__, request.__version__) == FETCH
