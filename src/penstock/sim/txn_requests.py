"""The requests of a transactional producer and of a reader of committed records, written and read without our codec."""

import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.add_offsets_to_txn.v3 import request as add_offsets_request
from kio.schema.add_offsets_to_txn.v3.response import AddOffsetsToTxnResponse
from kio.schema.add_partitions_to_txn.v3 import request as add_request
from kio.schema.add_partitions_to_txn.v3.response import AddPartitionsToTxnResponse
from kio.schema.end_txn.v4 import request as end_request
from kio.schema.end_txn.v4.response import EndTxnResponse
from kio.schema.end_txn.v5 import request as bumping_end_request
from kio.schema.end_txn.v5.response import EndTxnResponse as BumpingEndTxnResponse
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.find_coordinator.v4 import request as find_request
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.init_producer_id.v6 import request as init_request
from kio.schema.init_producer_id.v6.response import InitProducerIdResponse
from kio.schema.produce.v9.response import ProduceResponse
from kio.schema.produce.v12.response import ProduceResponse as AddingProduceResponse
from kio.schema.txn_offset_commit.v3 import request as commit_request
from kio.schema.txn_offset_commit.v3.response import TxnOffsetCommitResponse
from kio.schema.txn_offset_commit.v5 import request as adding_commit_request
from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponse as AddingTxnOffsetCommitResponse
from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import RECORD_BYTES_MAX, BrokenReply, SimClient
from penstock.sim.requests import FETCH, PRODUCE, fetch_body, produce_body
from penstock.sim.router import REQUEST_S
from penstock.wire.batch import has_valid_crc, read_header, records_of

GROUP, TRANSACTION = 0, 1  # Kinds of coordinators.
ADDING_PRODUCE = (0, 12)  # The leader adds the partition to the transaction.


class Identity(NamedTuple):
    producer_id: int
    epoch: int


class Committed(NamedTuple):
    """What a reader of committed records has got."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    records: list[tuple[int, bytes]]
    next_offset: int


async def find_coordinator(client: SimClient, name: str, kind: int) -> int | None:
    """The broker that coordinates the transactional id, or the group; None when nobody does now."""
    request = find_request.FindCoordinatorRequest(key_type=i8(kind), coordinator_keys=(name,))
    found = (await client.ask(request, FindCoordinatorResponse, within_s=REQUEST_S)).coordinators[0]
    return None if found.error_code.value else int(found.node_id)


async def init_producer_id(
    client: SimClient, name: str, *, timeout_s: float, keeps: bool = False
) -> tuple[ErrorCode, Identity]:
    request = init_request.InitProducerIdRequest(
        transactional_id=TransactionalId(name),
        transaction_timeout=i32Timedelta.parse(timedelta(seconds=timeout_s)),
        enable2_pc=keeps,
        keep_prepared_txn=keeps,
    )
    reply = await client.ask(request, InitProducerIdResponse, within_s=REQUEST_S)
    return ErrorCode(reply.error_code.value), Identity(reply.producer_id, reply.producer_epoch)


async def add_partition(client: SimClient, name: str, who: Identity, partition: TopicPartition) -> ErrorCode:
    request = add_request.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TransactionalId(name),
        v3_and_below_producer_id=ProducerId(who.producer_id),
        v3_and_below_producer_epoch=i16(who.epoch),
        v3_and_below_topics=(
            add_request.AddPartitionsToTxnTopic(
                name=TopicName(partition.topic), partitions=(i32(partition.partition),)
            ),
        ),
    )
    reply = await client.ask(request, AddPartitionsToTxnResponse, within_s=REQUEST_S)
    result = reply.results_by_topic_v3_and_below[0].results_by_partition[0]
    return ErrorCode(result.partition_error_code.value)


async def produce(
    client: SimClient, name: str, partition: TopicPartition, batch: bytearray, *, adds: bool
) -> ErrorCode:
    body = produce_body(partition, batch, name)
    if adds:
        adding = await client.ask_packed(*ADDING_PRODUCE, body, AddingProduceResponse, REQUEST_S)
        return ErrorCode(adding.responses[0].partition_responses[0].error_code.value)
    reply = await client.ask_packed(*PRODUCE, body, ProduceResponse, REQUEST_S)
    return ErrorCode(reply.responses[0].partition_responses[0].error_code.value)


async def add_offsets(client: SimClient, name: str, who: Identity, group: str) -> ErrorCode:
    request = add_offsets_request.AddOffsetsToTxnRequest(
        transactional_id=TransactionalId(name),
        producer_id=ProducerId(who.producer_id),
        producer_epoch=i16(who.epoch),
        group_id=GroupId(group),
    )
    return ErrorCode((await client.ask(request, AddOffsetsToTxnResponse, within_s=REQUEST_S)).error_code.value)


async def commit_offset(
    client: SimClient, name: str, who: Identity, group: str, partition: TopicPartition, offset: int, *, adds: bool
) -> ErrorCode:
    """Commit an offset of the group as a part of the transaction."""
    schema = adding_commit_request if adds else commit_request
    place = schema.TxnOffsetCommitRequestPartition(
        partition_index=i32(partition.partition), committed_offset=i64(offset), committed_metadata=None
    )
    topic = schema.TxnOffsetCommitRequestTopic(name=TopicName(partition.topic), partitions=(place,))
    request = schema.TxnOffsetCommitRequest(
        transactional_id=TransactionalId(name),
        group_id=GroupId(group),
        producer_id=ProducerId(who.producer_id),
        producer_epoch=i16(who.epoch),
        topics=(topic,),
    )
    reply: Any = await client.ask(
        request, AddingTxnOffsetCommitResponse if adds else TxnOffsetCommitResponse, within_s=REQUEST_S
    )
    return ErrorCode(reply.topics[0].partitions[0].error_code.value)


async def end_txn(
    client: SimClient, name: str, who: Identity, *, is_commit: bool, bumps: bool
) -> tuple[ErrorCode, Identity]:
    """The answer, and who the producer is from then on."""
    fields = {
        "transactional_id": TransactionalId(name),
        "producer_id": ProducerId(who.producer_id),
        "producer_epoch": i16(who.epoch),
        "committed": is_commit,
    }
    if bumps:
        request = bumping_end_request.EndTxnRequest(**fields)  # type: ignore[arg-type]
        bumped = await client.ask(request, BumpingEndTxnResponse, within_s=REQUEST_S)
        return ErrorCode(bumped.error_code.value), Identity(bumped.producer_id, bumped.producer_epoch)
    reply = await client.ask(
        end_request.EndTxnRequest(**fields),  # type: ignore[arg-type]
        EndTxnResponse,
        within_s=REQUEST_S,
    )
    return ErrorCode(reply.error_code.value), who


async def fetch_committed(
    client: SimClient, partition: TopicPartition, offset: int, *, wait_ms: int, leader_epoch: int
) -> Committed:
    body = fetch_body(partition, offset, wait_ms, 1 << 20, leader_epoch, is_committed=True)
    reply = await client.ask_packed(*FETCH, body, FetchResponse, REQUEST_S)
    answer = reply.responses[0].partitions[0]
    aborted = [(item.first_offset, item.producer_id) for item in answer.aborted_transactions or ()]
    records, next_offset = _committed(answer.records or b"", offset, aborted)
    return Committed(
        ErrorCode(answer.error_code.value), answer.high_watermark, answer.last_stable_offset, records, next_offset
    )


def _committed(data: bytes, offset: int, aborted: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, bytes]], int]:
    """What a consumer makes of fetched bytes: no markers, and nothing of what the broker says was aborted."""
    to_come = sorted(aborted)
    open_aborted: set[int] = set()
    found: list[tuple[int, bytes]] = []
    next_offset, position = offset, 0
    while len(data) - position >= 12:
        (length,) = struct.unpack_from(">i", data, position + 8)
        if position + 12 + length > len(data):
            break
        header = read_header(data, position)
        if not has_valid_crc(data, position, header):
            raise BrokenReply(f"fetched batch at offset {header.base_offset} has a wrong checksum")
        while to_come and to_come[0][0] <= header.last_offset:
            open_aborted.add(to_come.pop(0)[1])
        if header.is_control:
            open_aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_aborted):
            for record in records_of(data, position, decompressed_bytes_max=RECORD_BYTES_MAX):
                if record.offset >= offset:
                    found.append((record.offset, record.value or b""))
        position += header.size
        next_offset = header.next_offset
    return found, next_offset
