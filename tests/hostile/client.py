"""A client that may send anything: well-formed requests, read back by kio's own decoder, and raw bytes."""

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any
from uuid import UUID

from kio.index import load_response_schema
from kio.serial import entity_reader

from penstock.server import handlers
from penstock.server.api import ApiKey
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct, is_flexible_request, request_writer

from .broker_process import HOST

TIMEOUT_S = 60.0
CLIENT_ID = b"hostile"

handlers.register_all()


def request_frame(
    key: int, version: int, request: Struct, *, correlation_id: int = 1, client_id: bytes | None = CLIENT_ID
) -> bytes:
    """Header and body of a request, without the size that leads a frame."""
    length = -1 if client_id is None else len(client_id)
    out = bytearray(struct.pack(">hhih", key, version, correlation_id, length) + (client_id or b""))
    if is_flexible_request(key, version):
        out.append(0)
    request_writer(key, version)(out, request)
    return bytes(out)


def framed(body: bytes | bytearray) -> bytes:
    return struct.pack(">i", len(body)) + body


@cache
def reply_reader(key: int, version: int) -> Any:
    return entity_reader(load_response_schema(key, version))


def read_reply(key: int, version: int, reply: bytes, correlation_id: int) -> Any:
    """What kio makes of a reply; an assertion unless it understands every byte."""
    schema = load_response_schema(key, version)
    flexible = schema.__header_schema__.__version__ == 1
    assert struct.unpack_from(">i", reply)[0] == correlation_id
    start = 4
    if flexible:
        assert reply[4] == 0
        start = 5
    answer, size = reply_reader(key, version)(reply, start)
    assert start + size == len(reply), f"{len(reply) - start - size} bytes follow the reply"
    return answer


class Client:
    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    # Bytes

    def send(self, data: bytes | bytearray) -> None:
        """Send what the broker takes; that it closes meanwhile is its right."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def send_some(self, data: bytes, seconds: float) -> int:
        """How many bytes the broker takes within the time."""
        self._socket.settimeout(0.2)
        view, sent, end = memoryview(data), 0, time.monotonic() + seconds
        try:
            while sent < len(data) and time.monotonic() < end:
                try:
                    sent += self._socket.send(view[sent : sent + (1 << 20)])
                except TimeoutError:
                    continue
        finally:
            self._socket.settimeout(TIMEOUT_S)
        return sent

    def receive(self) -> bytes:
        """The next reply, without its size."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        assert 0 <= size <= 1 << 30
        return self._receive_exactly(size)

    def _receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            data += piece
        return bytes(data)

    def is_closed_by_broker(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether the broker closes, having sent nothing more."""
        self._socket.settimeout(timeout_s)
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(TIMEOUT_S)

    # Requests

    def ask_raw(self, key: int, version: int, request: Struct) -> bytes:
        self._correlation_id += 1
        self.send(framed(request_frame(key, version, request, correlation_id=self._correlation_id)))
        return self.receive()

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        """The answer, decoded by kio."""
        reply = self.ask_raw(key, version, Struct(**fields))
        return read_reply(key, version, reply, self._correlation_id)

    def create_topic(self, name: str, *, partitions: int = 1, **config: str) -> int:
        """The error code."""
        topic = Struct(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[Struct(name=key.replace("_", "."), value=value) for key, value in config.items()],
        )
        answer = self.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=10_000, validate_only=False)
        return int(answer.topics[0].error_code)

    def produce(
        self, topic: str, records: bytes | bytearray | None, *, partition: int = 0, version: int = 9, acks: int = -1
    ) -> tuple[int, int]:
        """Error code and base offset of one batch."""
        answer = self.ask(ApiKey.PRODUCE, version, **produce_fields([(topic, partition, records)], acks=acks))
        result = answer.responses[0].partition_responses[0]
        return int(result.error_code), int(result.base_offset)

    def fetch(self, topic: str, offset: int, *, partition: int = 0, version: int = 12, **fields: Any) -> Any:
        """The answer of one partition."""
        answer = self.ask(ApiKey.FETCH, version, **fetch_fields([(topic, partition, offset)], **fields))
        return answer.responses[0].partitions[0]

    def log_end(self, topic: str, partition: int = 0) -> int:
        wanted = Struct(partition_index=partition, timestamp=-1)
        topics = [Struct(name=topic, partitions=[wanted])]
        answer = self.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        found = answer.topics[0].partitions[0]
        assert int(found.error_code) == 0
        return int(found.offset)


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.05)


def produce_fields(
    batches: Sequence[tuple[str | UUID, int, bytes | bytearray | None]], *, acks: int = -1, timeout_ms: int = 60_000
) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": [
            Struct(name=topic, topic_id=topic, partition_data=[Struct(index=partition, records=records)])
            for topic, partition, records in batches
        ],
    }


def fetch_fields(
    wanted: Sequence[tuple[str | UUID, int, int]],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session_id: int = 0,
    session_epoch: int = -1,
    **more: Any,
) -> dict[str, Any]:
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [
            Struct(
                topic=topic,
                topic_id=topic,
                partitions=[
                    Struct(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes),
                ],
            )
            for topic, partition, offset in wanted
        ],
        "forgotten_topics_data": [],
        **more,
    }


def batch_of(*values: bytes, timestamp_ms: int | None = None, **fields: Any) -> bytearray:
    """A batch as a plain producer sends it."""
    now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
    return build_batch(records, base_offset=0, leader_epoch=-1, **fields)
