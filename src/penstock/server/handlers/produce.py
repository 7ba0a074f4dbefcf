"""Produce: append one batch to each partition, answer when the promise of `acks` holds.

acks=-1 waits for the commit (fsync, unless the topic has penstock.durability=os), acks=1 for the write, acks=0 gets no
answer: an error closes the connection instead, as the client has no other way to learn of it. Versions below 3 carry
old message formats; they are advertised, because released librdkafka versions compress only if they see v0
(KAFKA-18659), and refused. v12 would add partitions to a transaction by itself; v13 names topics by id.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import Timer
from penstock.base.types import NO_OFFSET, NO_TIMESTAMP, Offset
from penstock.partition.batch_check import Prepared, is_check_slow, is_long, is_short, wants_records
from penstock.partition.partition import Appended, Committed, Partition
from penstock.server.api import ApiKey, RequestHeader, raw_handler
from penstock.server.connection import Reply
from penstock.server.context import Context
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
NO_VERDICTS: Mapping[int, Prepared | Refused] = {}
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))

_background: set[asyncio.Task[None]] = set()  # Checks under way; the loop alone holds tasks weakly.


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
    if not slow:
        _store(context, header, request, reply, NO_VERDICTS)
        return
    reply.hold_others()
    task = asyncio.get_running_loop().create_task(_check_first(context, header, request, reply, slow))
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


async def _check_first(
    context: Context, header: RequestHeader, request: ProduceRequest, reply: Reply, slow: list[int]
) -> None:
    """Look at the batches, then go on. The connection's later requests wait: they must not overtake."""
    verdicts: dict[int, Prepared | Refused] = {}
    try:
        for number in slow:
            verdicts[number] = await _verdict(context, header, request.partitions[number])
        _store(context, header, request, reply, verdicts)
    except Exception:
        log.exception("request failed", api="PRODUCE", version=header.version, client=header.client_id)
        reply.fail("internal error")
    reply.release_others()


async def _verdict(context: Context, header: RequestHeader, item: ProducedPartition) -> Prepared | Refused:
    assert item.records is not None, "nothing takes no time"
    try:
        steps = _partition(context, item).prepare(item.records, produce_version=header.version)
        work = context.record_work.run(steps)
        quotas = context.quotas.active
        return await (work if quotas is None else quotas.timed(header.client_id, work))
    except Refused as refused:
        return Refused(refused.code, refused.message)  # Without its traceback, which holds the decompressed data.


def _store(
    context: Context,
    header: RequestHeader,
    request: ProduceRequest,
    reply: Reply,
    verdicts: Mapping[int, Prepared | Refused],
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
    verdict: Prepared | Refused | None,
) -> tuple[Partition, Appended]:
    if request.acks not in ACKS_VALID:
        raise Refused(ErrorCode.invalid_required_acks, f"acks={request.acks}, -1, 0 and 1 are allowed")
    if request.transactional_id is not None:
        raise Refused(ErrorCode.transactional_id_authorization_failed, "transactions are not served yet")
    try:
        partition = _partition(context, item)
        if request.acks == ACKS_ALL:
            partition.check_in_sync()
    except Refused:
        _note_refused(context, item)
        raise
    if item.records is None:
        raise Refused(ErrorCode.invalid_record, "one batch is needed")
    if isinstance(verdict, Refused):
        raise Refused(verdict.code, verdict.message)  # Not itself: its traceback would hold what holds it.
    return partition, partition.append(item.records, produce_version=header.version, prepared=verdict)


def _note_refused(context: Context, item: ProducedPartition) -> None:
    """Others of the same producer may be on their way, and find us the leader with enough replicas in sync."""
    if item.records is None:
        return
    try:
        topic = item.topic
        name = context.partitions.topic_name(topic) if isinstance(topic, UUID) else topic
        context.partitions.get(name, item.partition).on_refused(item.records)
    except Refused:
        return  # Not hosted here.


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
    """A request whose batches are written, and how many of them still wait for their commit."""

    __slots__ = ("_context", "_header", "_reply", "_request", "_results", "_timer", "_waiting_count")

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
        self._waiting_count = 0
        self._timer: Timer | None = None

    def begin(self, uncommitted: list[tuple[int, Partition, Offset]]) -> None:
        self._waiting_count = len(uncommitted)
        for number, partition, next_offset in uncommitted:
            partition.when_committed(next_offset, self._once_committed(number))
        delay_s = max(0, self._request.timeout_ms) / 1000
        self._timer = self._context.timers.call_later(delay_s, lambda: self._reply.attempt(self._on_timeout))

    def _once_committed(self, number: int) -> Committed:
        return lambda code: self._reply.attempt(lambda: self._on_committed(number, code))

    def _on_committed(self, number: int, code: ErrorCode) -> None:
        if self._waiting_count == 0:
            return  # Timed out before.
        if code is not ErrorCode.none:
            # Written but not promised: the client must not take the offset for granted.
            self._results[number] = _refused_result(self._results[number].partition, code, "not committed")
        self._waiting_count -= 1
        if self._waiting_count == 0:
            self._finish()

    def _on_timeout(self) -> None:
        self._waiting_count = 0
        for number, result in enumerate(self._results):
            if result.error == 0:
                self._results[number] = _refused_result(result.partition, ErrorCode.request_timed_out, "disk is slow")
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        _answer(self._header, self._request, self._results, self._reply)


def _refused_result(partition: int, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(partition, code, NO_OFFSET, NO_TIMESTAMP, NO_OFFSET, message or None)
