"""A Kafka client for workloads: produce, fetch, metadata and topics over the simulated network.

Writes and reads messages without the broker's codec, and so checks it: kio decodes, and encodes what is not packed by
hand. Requests may be pipelined; that the broker answers them in order is checked here.
"""

import asyncio
import io
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kio.schema.create_topics.v7 import request as create_topics_request
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.metadata.v12 import request as metadata_request
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.produce.v9.response import ProduceResponse
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.network import HOST, SimNetwork
from penstock.sim.requests import FETCH, PRODUCE, fetch_body, produce_body
from penstock.wire.batch import Record, build_batch, has_valid_crc, read_header, records_of

CLIENT_ID = "sim"
FRAME_BYTES_MAX = 1 << 24
RECORD_BYTES_MAX = 1 << 24
REPLY_TIMEOUT_S = 60.0  # Twice what any request allows the broker: beyond it the broker has forgotten us.


R = TypeVar("R")
Reader = Callable[[bytes, int], tuple[Any, int]]
_READERS: dict[type[Any], Reader] = {}  # kio makes one at every call.


class LinkLost(Exception):
    """The connection ended before the reply: the request may have been served or not."""


class NoReply(Exception):
    """The broker holds the connection and does not answer."""


class BrokenReply(AssertionError):
    """The broker answered out of order, or with bytes that are no reply."""


class ProduceReply(NamedTuple):
    error: ErrorCode
    base_offset: int


class FetchReply(NamedTuple):
    error: ErrorCode
    high_watermark: int
    records: list[tuple[int, bytes]]  # Offset and value, from the offset asked for on.
    log_start: int
    next_offset: int  # Where to go on; past what compaction has emptied.


class _Waiting(NamedTuple):
    correlation_id: int
    read: Reader
    reply: asyncio.Future[Any]


class SimClient(asyncio.Protocol):
    """One connection. Made by `connect`."""

    def __init__(self) -> None:
        self.number = 0  # Set by the owner, to tell its connections apart.
        self.lost = False
        self._received = bytearray()
        self._waiting: deque[_Waiting] = deque()
        self._sent = 0
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, network: SimNetwork, port: int) -> "SimClient":
        """A connected client; ConnectionRefusedError when no broker listens."""
        _, client = await network.connect(cls, HOST, port)
        return client

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        """As the kernel does for a process that died: a reset."""
        self._transport.abort()

    async def create_topic(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
        within_s: float = REPLY_TIMEOUT_S,
    ) -> ErrorCode:
        topic = create_topics_request.CreatableTopic(
            name=TopicName(name),
            num_partitions=i32(partitions),
            replication_factor=i16(replication_factor),
            assignments=(),
            configs=tuple(
                create_topics_request.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
            ),
        )
        request = create_topics_request.CreateTopicsRequest(topics=(topic,))
        reply = await self.ask(request, CreateTopicsResponse, within_s=within_s)
        return ErrorCode(reply.topics[0].error_code.value)

    async def metadata(
        self, topics: Sequence[str] | None = None, *, within_s: float = REPLY_TIMEOUT_S
    ) -> MetadataResponse:
        names = None if topics is None else tuple(map(_metadata_topic, topics))
        request = metadata_request.MetadataRequest(
            topics=names, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        return await self.ask(request, MetadataResponse, within_s=within_s)

    async def produce(
        self, partition: TopicPartition, batch: bytes | bytearray, *, within_s: float = REPLY_TIMEOUT_S
    ) -> ProduceReply:
        """The reply to one batch with acks=-1."""
        reply = await self.ask_packed(*PRODUCE, produce_body(partition, batch), ProduceResponse, within_s)
        answer = reply.responses[0].partition_responses[0]
        return ProduceReply(ErrorCode(answer.error_code.value), answer.base_offset)

    async def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        wait_ms: int = 0,
        bytes_max: int = 1 << 20,
        leader_epoch: int = -1,
        within_s: float = REPLY_TIMEOUT_S,
    ) -> FetchReply:
        """Records from `offset` on; an empty reply when none came within `wait_ms`."""
        body = fetch_body(partition, offset, wait_ms, bytes_max, leader_epoch)
        reply = await self.ask_packed(*FETCH, body, FetchResponse, within_s)
        answer = reply.responses[0].partitions[0]
        records, next_offset = _records(answer.records or b"", offset)
        code = ErrorCode(answer.error_code.value)
        return FetchReply(code, answer.high_watermark, records, answer.log_start_offset, next_offset)

    async def ask(self, request: Any, reply_type: type[R], *, within_s: float = REPLY_TIMEOUT_S) -> R:
        """The reply to a request of kio's; NoReply when it takes longer than it may."""
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        return await self.ask_packed(request.__api_key__, request.__version__, body.getvalue(), reply_type, within_s)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if not 0 < size <= FRAME_BYTES_MAX:
                raise BrokenReply(f"a reply of {size} bytes")
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        while self._waiting:
            reply = self._waiting.popleft().reply
            if not reply.done():
                reply.set_exception(LinkLost())

    async def ask_packed(
        self, api_key: int, version: int, body: bytes, reply_type: type[R], within_s: float = REPLY_TIMEOUT_S
    ) -> R:
        """As `ask`, for a request that was packed by hand."""
        if self.lost or self._transport.is_closing():
            raise LinkLost
        self._sent += 1
        header = struct.pack(">hhih", api_key, version, self._sent, len(CLIENT_ID)) + CLIENT_ID.encode() + b"\0"
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[R] = loop.create_future()
        self._waiting.append(_Waiting(self._sent, _reader_of(reply_type), reply))
        self._transport.write(struct.pack(">i", len(header) + len(body)) + header + body)
        timer = loop.call_later(within_s, _give_up, reply, f"{reply_type.__name__} within {within_s} s")
        try:
            return await reply
        finally:
            timer.cancel()

    def _on_frame(self, frame: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            raise BrokenReply(f"reply {correlation_id} came while waiting for {[w[0] for w in self._waiting]}")
        waiting = self._waiting.popleft()
        # A flexible response header is the correlation id and an empty set of tagged fields.
        reply, size = waiting.read(frame, 5)
        if frame[4] != 0 or 5 + size != len(frame):
            raise BrokenReply(f"reply {correlation_id} has {len(frame)} bytes, {5 + size} of them make sense")
        if not waiting.reply.done():
            waiting.reply.set_result(reply)


def _reader_of(reply_type: type[Any]) -> Reader:
    reader = _READERS.get(reply_type)
    if reader is None:
        reader = _READERS[reply_type] = entity_reader(reply_type)
    return reader


def _give_up(reply: "asyncio.Future[Any]", wanted: str) -> None:
    if not reply.done():
        reply.set_exception(NoReply(f"no {wanted}"))


def batch_of(values: Sequence[bytes], timestamp_ms: int) -> bytearray:
    """A batch as a producer without idempotence sends it."""
    records = [Record(number, timestamp_ms, None, value) for number, value in enumerate(values)]
    return build_batch(records, base_offset=0, leader_epoch=-1)


def _metadata_topic(name: str) -> metadata_request.MetadataRequestTopic:
    return metadata_request.MetadataRequestTopic(topic_id=None, name=TopicName(name))


def _records(data: bytes, offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """What a consumer makes of fetched bytes: checked batches, a last one that is cut short left out."""
    next_offset = offset
    found: list[tuple[int, bytes]] = []
    position = 0
    while len(data) - position >= 12:
        (length,) = struct.unpack_from(">i", data, position + 8)
        if position + 12 + length > len(data):
            break
        header = read_header(data, position)
        if not has_valid_crc(data, position, header):
            raise BrokenReply(f"fetched batch at offset {header.base_offset} has a wrong checksum")
        for record in records_of(data, position, decompressed_bytes_max=RECORD_BYTES_MAX):
            if record.offset >= offset:
                found.append((record.offset, record.value or b""))
        position += header.size
        next_offset = header.next_offset
    return found, next_offset
