"""Produce requests made once and sent as fast as a socket takes them: the broker is the bottleneck, not the client."""

import socket
import struct
import time

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct, request_writer, response_reader

PRODUCE_VERSION = 7
FETCH_VERSION = 11
CORRELATION_BYTES = 4


def answers(port: int) -> bool:
    """Whether the broker answers a request."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1))
            return len(connection.recv(4)) == 4
    except OSError:
        return False


class RawClient:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 20)

    def close(self) -> None:
        self._socket.close()

    def produce(self, topic: str, record_bytes: int, records: int, requests: int, in_flight: int) -> float:
        """Seconds for `requests` batches of `records`, with `in_flight` requests open."""
        now_ms = int(time.time() * 1000)
        batch = build_batch([Record(n, now_ms, None, bytes(record_bytes)) for n in range(records)], base_offset=0)
        partition = Struct(index=0, records=bytes(batch))
        message = Struct(
            transactional_id=None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[Struct(name=topic, partition_data=[partition])],
        )
        frame = _frame(ApiKey.PRODUCE, PRODUCE_VERSION, message)
        start, sent = time.perf_counter(), 0
        for answered in range(requests):
            while sent < requests and sent - answered < in_flight:
                self._socket.sendall(frame)
                sent += 1
            answer, _ = response_reader(ApiKey.PRODUCE, PRODUCE_VERSION)(self._reply(), CORRELATION_BYTES)
            check(answer.responses[0].partition_responses[0].error_code, "Produce")
        return time.perf_counter() - start

    def fetch(self, topic: str, total_bytes: int, bytes_max: int) -> float:
        """Seconds to read `total_bytes` from the start of the topic."""
        start, received, offset = time.perf_counter(), 0, 0
        while received < total_bytes:
            self._socket.sendall(fetch_frame(topic, offset, bytes_max, max_wait_ms=500))
            records = fetched_records(self._reply(), topic)
            received += len(records)
            offset = _next_offset(records)
        return time.perf_counter() - start

    def _reply(self) -> bytes:
        (size,) = struct.unpack(">i", self._stream.read(4))
        return self._stream.read(size)


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


def _next_offset(records: memoryview) -> int:
    position, next_offset = 0, 0
    while position < len(records):
        base, length = struct.unpack_from(">qi", records, position)
        (delta,) = struct.unpack_from(">i", records, position + 23)
        next_offset = base + delta + 1
        position += 12 + length
    return next_offset


def _frame(key: ApiKey, version: int, message: Struct) -> bytes:
    body = bytearray(struct.pack(">hhih", key, version, 0, -1))
    request_writer(key, version)(body, message)
    return struct.pack(">i", len(body)) + bytes(body)
