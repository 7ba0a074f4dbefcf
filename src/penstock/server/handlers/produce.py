"""Produce: append one batch to each partition, answer when the promise of `acks` holds.

acks=-1 waits for the commit (fsync, unless the topic has penstock.durability=os), acks=1 for the write, acks=0 gets no
answer: an error closes the connection instead, as the client has no other way to learn of it. Versions below 3 carry
old message formats; they are advertised, because released librdkafka versions compress only if they see v0
(KAFKA-18659), and refused. v11 knows TRANSACTION_ABORTABLE, v12 adds partitions to a transaction by itself (KIP-890),
v13 names topics by id.

The first batch of a transaction waits until its coordinator has said that it is ongoing, and what comes behind it over
the same connection waits with it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import Timer
from penstock.base.types import NO_OFFSET, NO_TIMESTAMP, Offset, TopicPartition
from penstock.coordinator.txn.metadata import Producer
from penstock.partition.batch_check import Prepared, is_check_slow, is_long, is_short, wants_records
from penstock.partition.partition import Appended, Committed, Partition
from penstock.partition.verification_guards import VerificationGuard
from penstock.server.api import ApiKey, RequestHeader, raw_handler
from penstock.server.connection import Reply
from penstock.server.context import Context
from penstock.server.txn_verification import produce_error
from penstock.wire.batch import HEADER_BYTES, read_header
from penstock.wire.produce import (
    PartitionResult,
    ProducedPartition,
    ProduceRequest,
    pack_produce_response,
    pack_stored,
    produce_start,
    read_produce_request,
)

log = get_logger(__name__)

ACKS_ALL = -1
ACKS_NONE = 0
ACKS_VALID = (-1, 0, 1)
ADDING_VERSION = 12  # From here on the broker adds partitions to their transaction.
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))

_background: set[asyncio.Task[None]] = set()  # Checks under way; the loop alone holds tasks weakly.


class Checked(NamedTuple):
    """A batch that may be appended."""

    prepared: Prepared | None = None
    guard: VerificationGuard | None = None  # Of a transaction that begins here.


class Unverified(NamedTuple):
    """A batch whose transaction is not known to be ongoing."""

    partition: TopicPartition
    producer: Producer
    guard: VerificationGuard


Verdicts = Mapping[int, Checked | Refused]  # By the number of the batch in the request.
NO_VERDICTS: Verdicts = {}
NONE_UNVERIFIED: Mapping[int, Unverified] = {}


@raw_handler(ApiKey.PRODUCE, versions=range(3, 14), advertised_min=0)
def produce(context: Context, header: RequestHeader, frame: memoryview, position: int, reply: Reply) -> None:
    start = header.habits.produce_start
    request = None if start is None else start.read(frame, position)
    if request is None:
        request = read_produce_request(frame, position, header.version)
        header.habits.produce_start = produce_start(frame, position, header.version, request)
    quotas = context.quotas.active
    if quotas is not None:
        # When it comes, not when it is answered: dozens more may be on their way, and shall wait in the socket.
        throttle_ms = quotas.on_produce(header.client_id, len(frame))
        reply.throttle(throttle_ms)
        header = replace(header, throttle_ms=max(throttle_ms, header.throttle_ms))
    slow = _slow_checks(context, request)
    unverified = _unverified(context, header, request) if request.transactional_id is not None else NONE_UNVERIFIED
    if not slow and not unverified:
        _store(context, header, request, reply, NO_VERDICTS)
        return
    reply.hold_others()
    task = asyncio.get_running_loop().create_task(_check_first(context, header, request, reply, slow, unverified))
    _background.add(task)
    task.add_done_callback(_background.discard)


def _slow_checks(context: Context, request: ProduceRequest) -> list[int]:
    """Numbers of the batches that take long to look at."""
    return [
        number
        for number, item in enumerate(request.partitions)
        if item.records is not None and not is_short(item.records) and _is_slow(context, item, item.records)
    ]


def _is_slow(context: Context, item: ProducedPartition, records: memoryview) -> bool:
    if is_check_slow(records, context.config.max_decompressed_message_bytes):
        return True
    if not is_long(records):
        return False
    try:
        return wants_records(records, _partition(context, item).config)
    except Refused:
        return False  # It will be again.


def _partition(context: Context, item: ProducedPartition) -> Partition:
    """The partition that is written to; Refused when it is not here or not for clients to write."""
    topic = item.topic
    name = context.partitions.topic_name(topic) if isinstance(topic, UUID) else topic
    if name in INTERNAL_TOPICS:
        raise Refused(ErrorCode.invalid_topic_exception, f"{name} is written by the broker alone")
    return context.partitions.leader(name, item.partition)


def _unverified(context: Context, header: RequestHeader, request: ProduceRequest) -> Mapping[int, Unverified]:
    """The batches that begin a transaction in their partitions."""
    found: dict[int, Unverified] = {}
    for number, item in enumerate(request.partitions):
        if item.records is None or len(item.records) < HEADER_BYTES:
            continue
        batch = read_header(item.records)
        if not batch.is_transactional:
            continue
        try:
            partition = _partition(context, item)
            guard = partition.begin_verification(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                begins_at_zero=header.version >= ADDING_VERSION,
            )
        except Refused:
            continue  # It will be again.
        if guard is not None:
            producer = Producer(batch.producer_id, batch.producer_epoch)
            found[number] = Unverified(partition.topic_partition, producer, guard)
    return found


async def _check_first(
    context: Context,
    header: RequestHeader,
    request: ProduceRequest,
    reply: Reply,
    slow: list[int],
    unverified: Mapping[int, Unverified],
) -> None:
    """Look at the batches, then go on. The connection's later requests wait: they must not overtake."""
    verdicts: dict[int, Checked | Refused] = {}
    try:
        for number in slow:
            verdicts[number] = await _verdict(context, header, request.partitions[number])
        if unverified:
            await _verify(context, header, request, unverified, verdicts)
        _store(context, header, request, reply, verdicts)
    except Exception:
        log.exception("request failed", api="PRODUCE", version=header.version, client=header.client_id)
        reply.fail("internal error")
    reply.release_others()


async def _verify(
    context: Context,
    header: RequestHeader,
    request: ProduceRequest,
    unverified: Mapping[int, Unverified],
    verdicts: dict[int, Checked | Refused],
) -> None:
    """Ask the coordinator, and note for each batch what that means for it."""
    assert request.transactional_id is not None
    producers = {item.producer for item in unverified.values()}
    wanted = {item.partition for number, item in unverified.items() if not isinstance(verdicts.get(number), Refused)}
    if len(producers) == 1 and wanted:
        codes = await context.txn_verification.ask(
            request.transactional_id, producers.pop(), wanted, is_added=header.version >= ADDING_VERSION
        )
    else:
        codes = dict.fromkeys(wanted, ErrorCode.invalid_producer_id_mapping)
    for number, item in unverified.items():
        before = verdicts.get(number, Checked())
        if isinstance(before, Refused):
            continue
        code = codes[item.partition]
        if code is ErrorCode.none:
            verdicts[number] = before._replace(guard=item.guard)
        else:
            message = f"the partition is not known to be in the transaction: {code.name}"
            verdicts[number] = Refused(produce_error(code, header.version), message)


async def _verdict(context: Context, header: RequestHeader, item: ProducedPartition) -> Checked | Refused:
    assert item.records is not None, "nothing takes no time"
    try:
        steps = _partition(context, item).prepare(item.records, produce_version=header.version)
        work = context.record_work.run(steps)
        quotas = context.quotas.active
        return Checked(await (work if quotas is None else quotas.timed(header.client_id, work)))
    except Refused as refused:
        return Refused(refused.code, refused.message)  # Without its traceback, which holds the decompressed data.


def _store(
    context: Context,
    header: RequestHeader,
    request: ProduceRequest,
    reply: Reply,
    verdicts: Verdicts,
) -> None:
    """Append every batch, and answer now or when the last of them is committed."""
    results: list[PartitionResult] = []
    uncommitted: list[tuple[int, Partition, Offset]] = []
    for number, item in enumerate(request.partitions):
        try:
            partition, appended = _append(context, header, request, item, verdicts.get(number))
        except Refused as refused:
            results.append(_refused_result(item.partition, refused.code, refused.message))
            continue
        if request.acks == ACKS_ALL and partition.high_watermark < appended.next_offset:
            uncommitted.append((number, partition, appended.next_offset))
        log_start = partition.log.log_start
        results.append(
            PartitionResult(item.partition, 0, appended.base_offset, appended.log_append_time, log_start, None)
        )
    if uncommitted:
        _Commit(context, header, request, results, reply).begin(uncommitted)
    else:
        _answer(header, request, results, reply)


def _append(
    context: Context,
    header: RequestHeader,
    request: ProduceRequest,
    item: ProducedPartition,
    verdict: Checked | Refused | None,
) -> tuple[Partition, Appended]:
    if request.acks not in ACKS_VALID:
        raise Refused(ErrorCode.invalid_required_acks, f"acks={request.acks}, -1, 0 and 1 are allowed")
    try:
        partition = _partition(context, item)
        if request.acks == ACKS_ALL:
            partition.check_in_sync()
    except Refused as refused:
        # Others of the same producer may be on their way, and find us the leader with enough replicas in sync.
        if item.records is not None:
            context.partitions.on_refused(item.topic, item.partition, item.records, refused.code)
        raise
    if item.records is None:
        raise Refused(ErrorCode.invalid_record, "one batch is needed")
    if verdict is None and request.transactional_id is None:
        return partition, partition.append(item.records, produce_version=header.version)
    if isinstance(verdict, Refused):
        raise Refused(verdict.code, verdict.message)  # Not itself: its traceback would hold what holds it.
    prepared, guard = verdict or Checked()
    return partition, partition.append(
        item.records,
        produce_version=header.version,
        prepared=prepared,
        is_transactional=request.transactional_id is not None,
        guard=guard,
    )


def _answer(header: RequestHeader, request: ProduceRequest, results: list[PartitionResult], reply: Reply) -> None:
    if not reply.is_wanted:
        return
    if request.acks == ACKS_NONE:
        for result in results:
            if result.error:
                reply.fail(f"acks=0 and {ErrorCode(result.error).name}")
                return
        reply.skip()
        return
    if len(results) == 1 and results[0].error == 0:
        reply.send([pack_stored(header.version, request.partitions[0].topic, results[0], header.throttle_ms)])
        return
    topics: list[tuple[str | UUID, list[PartitionResult]]] = []
    for item, result in zip(request.partitions, results, strict=True):
        if not topics or topics[-1][0] != item.topic:
            topics.append((item.topic, []))
        topics[-1][1].append(result)
    reply.send([pack_produce_response(header.version, topics, header.throttle_ms)])


class _Commit:
    """A request whose batches are written, and which of them still wait for their commit."""

    __slots__ = ("_context", "_header", "_reply", "_request", "_results", "_timer", "_waiting")

    def __init__(
        self,
        context: Context,
        header: RequestHeader,
        request: ProduceRequest,
        results: list[PartitionResult],
        reply: Reply,
    ) -> None:
        self._context = context
        self._header = header
        self._request = request
        self._results = results
        self._reply = reply
        self._waiting: set[int] = set()  # Numbers of the batches.
        self._timer: Timer | None = None

    def begin(self, uncommitted: list[tuple[int, Partition, Offset]]) -> None:
        for item in self._request.partitions:
            item.records = None  # Or a disk that hangs would have us keep the frame of each try, answered or not.
        self._waiting = {number for number, _, _ in uncommitted}
        for number, partition, next_offset in uncommitted:
            partition.when_committed(next_offset, self._once_committed(number))
        delay_s = max(0, self._request.timeout_ms) / 1000
        self._timer = self._context.timers.call_later(delay_s, lambda: self._reply.attempt(self._on_timeout))

    def _once_committed(self, number: int) -> Committed:
        return partial(self._reply.attempt, self._on_committed, number)

    def _on_committed(self, number: int, code: ErrorCode) -> None:
        if number not in self._waiting:
            return  # Timed out before.
        self._waiting.discard(number)
        if code is not ErrorCode.none:
            # Written but not promised: the client must not take the offset for granted.
            self._results[number] = _refused_result(self._results[number].partition, code, "not committed")
        if not self._waiting:
            self._finish()

    def _on_timeout(self) -> None:
        for number in self._waiting:
            partition = self._results[number].partition
            self._results[number] = _refused_result(partition, ErrorCode.request_timed_out, "disk is slow")
        self._waiting.clear()
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        _answer(self._header, self._request, self._results, self._reply)


def _refused_result(partition: int, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(partition, code, NO_OFFSET, NO_TIMESTAMP, NO_OFFSET, message or None)
