"""Produce requests made once and sent as fast as a socket takes them: the broker is the bottleneck, not the client."""

import socket
import struct
import time
from collections.abc import Iterable

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct, request_writer, response_reader
from ports import HOST

PRODUCE_VERSION = 7
FETCH_VERSION = 11
LIST_OFFSETS_VERSION = 2
CORRELATION_BYTES = 4
BATCH_HEADER_BYTES = 61
ANSWER_S_MAX = 60  # A broker that says nothing for so long has failed.


def answers(port: int) -> bool:
    """Whether the broker answers a request."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1))
            return len(connection.recv(4)) == 4
    except OSError:
        return False


class RawClient:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 16)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def produce(self, frames: Iterable[bytes], in_flight: int = 1) -> float:
        """Seconds until every one of `frames` is answered, with `in_flight` of them open."""
        start, open_count = time.perf_counter(), 0
        for frame in frames:
            if open_count == in_flight:
                self._check_produced()
                open_count -= 1
            self._socket.sendall(frame)
            open_count += 1
        for _ in range(open_count):
            self._check_produced()
        return time.perf_counter() - start

    def fetch(self, topic: str, end: int, bytes_max: int) -> float:
        """Seconds to read the topic from its start to offset `end`."""
        start, offset = time.perf_counter(), 0
        while offset < end:
            self._socket.sendall(fetch_frame(topic, offset, bytes_max, max_wait_ms=500))
            reached = next_offset(fetched_records(self._reply(), topic), offset)
            if reached == offset:
                raise RuntimeError(f"nothing at offset {offset} of {end}")
            offset = reached
        return time.perf_counter() - start

    def end_errors(self, topic: str, partitions: int) -> set[ErrorCode]:
        """The errors that partitions answer when they are asked for their ends."""
        asked = [Struct(partition_index=number, timestamp=-1) for number in range(partitions)]
        message = Struct(replica_id=-1, isolation_level=0, topics=[Struct(name=topic, partitions=asked)])
        self._socket.sendall(_frame(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, message))
        answer, _ = response_reader(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION)(self._reply(), CORRELATION_BYTES)
        return {ErrorCode(code) for partition in answer.topics[0].partitions if (code := partition.error_code)}

    def _check_produced(self) -> None:
        answer, _ = response_reader(ApiKey.PRODUCE, PRODUCE_VERSION)(self._reply(), CORRELATION_BYTES)
        check(answer.responses[0].partition_responses[0].error_code, "Produce")

    def _reply(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("the broker has closed the connection")
        return data


def produce_frame(topic: str, *, partition: int = 0, record_bytes: int, records: int) -> bytes:
    """A request with one batch for one partition."""
    now_ms = int(time.time() * 1000)
    batch = build_batch([Record(n, now_ms, None, bytes(record_bytes)) for n in range(records)], base_offset=0)
    message = Struct(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[Struct(name=topic, partition_data=[Struct(index=partition, records=bytes(batch))])],
    )
    return _frame(ApiKey.PRODUCE, PRODUCE_VERSION, message)


def fetched_records(reply: bytes | bytearray, topic: str) -> memoryview:
    """The records in the answer to `fetch_frame`: at its end, for there is one topic and one partition."""
    error_at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
    check(int.from_bytes(reply[error_at : error_at + 2], "big", signed=True), "Fetch")
    return memoryview(reply)[error_at + 2 + 8 + 8 + 8 + 4 + 4 + 4 :]


def check(error_code: int, what: str) -> None:
    if error_code:
        raise RuntimeError(f"{what} was refused: {ErrorCode(error_code).name}")


def fetch_frame(topic: str, offset: int, bytes_max: int, *, max_wait_ms: int) -> bytes:
    """A request for partition 0, from `offset` on."""
    partition = Struct(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=bytes_max,
    )
    message = Struct(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[Struct(topic=topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    return _frame(ApiKey.FETCH, FETCH_VERSION, message)


def next_offset(records: memoryview, offset: int) -> int:
    """Where to read on after `records`, which begin at `offset` and may end with a part of a batch."""
    position = 0
    while position + BATCH_HEADER_BYTES <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        (delta,) = struct.unpack_from(">i", records, position + 23)
        position += 12 + length
        if position <= len(records):
            offset = base + delta + 1
    return offset


def _frame(key: ApiKey, version: int, message: Struct) -> bytes:
    body = bytearray(struct.pack(">hhih", key, version, 0, -1))
    request_writer(key, version)(body, message)
    return struct.pack(">i", len(body)) + bytes(body)
