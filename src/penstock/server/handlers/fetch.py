"""Fetch: committed batches as they lie on disk, or a wait until there are some.

v7 adds sessions (KIP-227), v9 leader epochs (KIP-320), v10 zstd, v12 is flexible, v13 names topics by id. A fetch
inside a batch gets the whole batch: clients skip what they did not ask for. The first batch of a reply is sent even if
it is larger than every limit, or its reader would never get past it (KIP-74).

A follower gets what is not committed as well, and says by its offset what it has, which moves the high watermark. Only
brokers may do that: a client that posed as a follower could have others believe that records are safe (CVE-2018-1288).
A follower whose log is not a part of ours is told where it left it, and gets nothing.

A follower that is not in sync gets the records of throttled partitions (KIP-73) only as far as the leader's quota goes;
the rest of its reply does not wait for them.

Who reads committed data only gets none behind the first open transaction, and is told which of the transactions in its
reply were aborted: it skips their records itself.

From v11 on a consumer may read from a follower (KIP-392). A leader that knows one in the consumer's rack says so.

From v15 on, a reader whose partitions all had records for it finds its next answer prepared (prepared_fetch.py).
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from uuid import UUID

from penstock.base.config import RACK_AWARE_SELECTOR
from penstock.base.errors import ErrorCode, Refused
from penstock.base.timers import Timer
from penstock.base.types import NO_OFFSET, LeaderEpoch, Offset
from penstock.partition.partition import Partition
from penstock.server.api import ApiKey, RequestHeader, raw_handler
from penstock.server.authentication import BrokerIdentity
from penstock.server.connection import Reply
from penstock.server.context import Context
from penstock.server.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    QUIET_S_MAX,
    FetchSession,
    Quiet,
    SessionPartition,
)
from penstock.server.prepared_fetch import AnsweredFetch, NextOffsets, PreparedFetch, PreparedPartition
from penstock.storage.fs import Buffer
from penstock.storage.log_slice import LogSlice
from penstock.storage.segment import NotCached
from penstock.wire.fetch import (
    NO_REPLICA,
    PREFERRED_REPLICA_VERSION,
    SESSION_VERSION,
    TOPIC_ID_VERSION,
    FetchedPartition,
    pack_fetch_response,
)
from penstock.wire.fetch_request import (
    REPLICA_STATE_VERSION,
    FetchRequest,
    WantedPartition,
    read_fetch_request,
    read_on,
)

WAIT_MS_MAX = 60_000  # Longer than any client asks for; bounds how long a gone client is remembered.
DISK_READS_MAX = 1000  # A reply needs a few dozen at most; more means that the cache loses pages as fast as we load.
REPLY_BYTES_MAX = 16 << 20  # The replies of others to the same client wait meanwhile.
# Of a reply that is read before its first byte leaves: what does not fit into the processor's cache is read twice.
REPLY_MEMORY_BYTES_MAX = 4 << 20
REPLY_REST_BYTES = 64 << 10  # With less room than that a reply is full: most of what is read for it would not fit.
PREPARED_BODY_BYTES_MAX = 16 << 10  # 36 for each of the 256 slices that fit into the largest reply, and the rest.
READ_COMMITTED = 1
NO_ABORTED: Sequence[tuple[int, int]] = ()
NOTHING_NEW = FetchedPartition(-1, 0, NO_OFFSET, NO_OFFSET, NO_OFFSET, b"", None)  # Of a quiet partition: left out.

_background: set[asyncio.Task[None]] = set()  # Disk reads under way; the loop alone holds tasks weakly.


@raw_handler(ApiKey.FETCH, versions=range(4, 19))
def fetch(context: Context, header: RequestHeader, frame: memoryview, position: int, reply: Reply) -> None:
    prepared, header.habits.prepared_fetch = header.habits.prepared_fetch, None
    if prepared is not None and _answer_prepared(context, header, bytes(frame[position:]), prepared, reply):
        return
    request = read_fetch_request(frame, position, header.version)
    try:
        session, wanted = _resolve(context, header.version, request)
    except Refused as refused:
        reply.send(pack_fetch_response(header.version, refused.code, NO_SESSION, [], header.throttle_ms))
        return
    if session is None:
        wanted = _in_turn(wanted, header.habits.fetched_last)
    attempt = _Fetch(context, header, request, session, wanted, reply)
    attempt.run()
    if session is not None and attempt.next_offsets and len(frame) - position <= PREPARED_BODY_BYTES_MAX:
        answered = AnsweredFetch(bytes(frame[position:]), request, session, attempt.next_offsets)
        reply.on_sent = partial(_prepare, context, header, answered)


def _prepare(context: Context, header: RequestHeader, answered: AnsweredFetch, reply: Reply) -> None:
    """Make the answer to the request that comes next if its sender reads on."""
    body, request, session, next_offsets = answered
    asked = {(item.topic, item.partition): item for item in request.partitions}
    if (
        header.version < REPLICA_STATE_VERSION
        or not reply.is_wanted
        or context.quotas.active is not None
        or list(session.partitions) != list(next_offsets)
        or asked.keys() != next_offsets.keys()
    ):
        return
    # By what the request says, not its session: another request may have come meanwhile, with other limits.
    wanted = [asked[key]._replace(fetch_offset=offset) for key, offset in next_offsets.items()]
    following = read_on(body, (session.session_id, session.epoch), next_offsets)
    attempt = _Fetch(context, header, request, session, wanted, reply)
    header.habits.prepared_fetch = attempt.prepare(following, session)


def _answer_prepared(
    context: Context, header: RequestHeader, body: bytes, prepared: PreparedFetch, reply: Reply
) -> bool:
    """Whether this is the request that was expected, and its answer has been sent."""
    now_s, session = context.clock.monotonic(), prepared.answered.session
    if context.quotas.active is not None or not prepared.is_for(body, now_s):
        return False
    try:
        context.fetch_sessions.resume(session.session_id, prepared.epoch, now_s)
    except Refused:
        return False  # As it will be again, for the reader to hear of it.
    session.update([partition.wanted for partition in prepared.partitions], ())
    for partition in prepared.partitions:
        session.on_sent((partition.wanted.topic, partition.wanted.partition), partition.told, True)
    reply.on_sent = partial(_prepare, context, header, prepared.answered)
    reply.send(prepared.parts)
    return True


def _resolve(
    context: Context, version: int, request: FetchRequest
) -> tuple[FetchSession | None, list[WantedPartition]]:
    """The session of this fetch, if any, and all that it is to fetch."""
    by_id = version >= TOPIC_ID_VERSION
    # A partition that is there twice is fetched once: each time would cost a read.
    wanted = list({(item.topic, item.partition): item for item in request.partitions}.values())
    epoch, sessions = request.session_epoch, context.fetch_sessions
    now_s = context.clock.monotonic()
    if version < SESSION_VERSION or epoch == FINAL_EPOCH:
        sessions.close(request.session_id)
        return None, wanted
    if epoch == INITIAL_EPOCH:
        sessions.close(request.session_id)
        session = sessions.open(now_s) if wanted else None
        if session is not None:
            session.by_id = by_id
            try:
                sessions.update(session, wanted)
            except Refused:
                session = None
        return session, wanted
    session = sessions.resume(request.session_id, epoch, now_s)
    if session.by_id is not by_id:
        sessions.close(request.session_id)
        raise Refused(ErrorCode.fetch_session_topic_id_error)
    sessions.update(session, wanted, request.forgotten)
    return session, [known.wanted for known in session.partitions.values()]


def _in_turn(wanted: list[WantedPartition], last: tuple[str | UUID, int] | None) -> list[WantedPartition]:
    """Those behind the one that was served last come first, or the first ones could fill every reply.

    A session keeps this order itself; its clients need not name their partitions.
    """
    if last is None or len(wanted) == 1:
        return wanted
    first = next((number for number, item in enumerate(wanted, 1) if (item.topic, item.partition) == last), 0)
    return wanted[first:] + wanted[:first]


def _follower(context: Context, header: RequestHeader, request: FetchRequest) -> BrokerIdentity | None:
    """The broker that fetches as a replica, if this is one and it has proved to be who it says."""
    broker = header.broker
    if broker is None or broker != (request.replica_id, request.broker_epoch):
        return None
    return broker if broker.is_current(context.metadata.image) else None


def _is_elsewhere(result: FetchedPartition) -> bool:
    """Whether the answer is not here: with another replica, or in the follower's own past."""
    return result.diverging is not None or result.preferred_replica != NO_REPLICA


def _by_topic(
    answers: Iterable[tuple[WantedPartition, FetchedPartition]],
) -> list[tuple[str | UUID, list[FetchedPartition]]]:
    topics: list[tuple[str | UUID, list[FetchedPartition]]] = []
    for item, result in answers:
        if not topics or topics[-1][0] != item.topic:
            topics.append((item.topic, []))
        topics[-1][1].append(result)
    return topics


def _aborted(partition: Partition, start: Offset, end: Offset) -> Sequence[tuple[int, int]]:
    """The aborted transactions that have records in between."""
    return [(entry.producer_id, entry.first_offset) for entry in partition.aborted(start, end)]


class _Fetch:
    """One fetch on its way: tries, waits for records or the disk, tries again, answers."""

    __slots__ = (
        "_bytes_max",
        "_context",
        "_disk_reads",
        "_follower",
        "_header",
        "_is_incremental",
        "_is_loading",
        "_is_refused",
        "_known",
        "_min_bytes",
        "_missing_bytes",
        "_partitions",
        "_rack",
        "_read_committed",
        "_reply",
        "_request",
        "_session",
        "_throttled_bytes",
        "_timer",
        "_wait_ms",
        "_wanted",
        "next_offsets",
    )

    def __init__(
        self,
        context: Context,
        header: RequestHeader,
        request: FetchRequest,
        session: FetchSession | None,
        wanted: list[WantedPartition],
        reply: Reply,
    ) -> None:
        self._context = context
        self._header = header
        self._request = request
        self._session = session
        self._is_incremental = session is not None and request.session_epoch != INITIAL_EPOCH
        self._wanted = wanted
        self._reply = reply
        self._follower = _follower(context, header, request)
        self._is_refused = request.replica_id >= 0 and self._follower is None
        self._known: list[SessionPartition] | None = None  # Of a follower's session, in the order of `_wanted`.
        if session is not None and self._is_incremental and self._follower is not None:
            self._known = list(session.partitions.values())
        self._rack = request.rack if context.config.replica_selector_class == RACK_AWARE_SELECTOR else ""
        self._read_committed = request.isolation_level == READ_COMMITTED
        self._bytes_max = max(0, min(request.max_bytes, context.config.fetch_max_bytes, REPLY_BYTES_MAX))
        quotas = context.quotas.active
        if quotas is not None and self._follower is None:
            self._bytes_max = min(self._bytes_max, quotas.fetch_bytes_max(header.client_id))
        self._min_bytes = min(request.min_bytes, self._bytes_max, reply.room_bytes)
        self._wait_ms = min(request.max_wait_ms, WAIT_MS_MAX)
        self._missing_bytes = 0
        self._throttled_bytes = 0  # Of the records that were read.
        self._disk_reads = 0
        self._is_loading = False  # From the disk: then nothing else may make us try again.
        self._partitions: list[Partition] = []
        self._timer: Timer | None = None
        # Where each partition's reader goes on, once all of them were answered with records that leave from files.
        self.next_offsets: NextOffsets = {}

    def run(self) -> None:
        """Answer if there is enough to answer with or no time to wait; else wait."""
        try:
            results, has_error = self._read_all()
        except NotCached as miss:
            self._read_from_disk(miss)
            return
        total = sum(len(result.records) for result in results)
        if has_error or total >= self._min_bytes or self._wait_ms <= 0 or not self._wanted:
            self._answer(results)
            return
        self._missing_bytes = self._min_bytes - total
        if self._timer is None:
            self._timer = self._context.timers.call_later(self._wait_ms / 1000, self._on_deadline)
        self._reply.on_lost = self._on_lost
        for partition in self._partitions:
            if self._follower is None:
                partition.waiters.wait(self._on_readable, only_stable=self._read_committed)
            else:
                partition.waiters.wait_for_appends(self._on_readable)

    def _on_readable(self, count: int) -> None:
        self._missing_bytes -= count
        if self._missing_bytes <= 0:
            self._go_on()

    def _on_deadline(self) -> None:
        self._wait_ms = 0
        if not self._is_loading:
            self._go_on()

    def _on_lost(self) -> None:
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        """Try again. Others wait behind us for the same records, or in the same tick."""
        self._stop_waiting()
        if self._reply.is_wanted:
            self._run_later()

    def _run_later(self) -> None:
        """Run outside of the turn in which the request came, whose time nobody else counts."""
        quotas = self._context.quotas.active
        if quotas is None or self._follower is not None:
            self._reply.attempt(self.run)
            return
        began_s = quotas.now()
        self._reply.attempt(self.run)
        quotas.on_request_time(self._header.client_id, quotas.now() - began_s)

    def _stop_waiting(self) -> None:
        for partition in self._partitions:
            partition.waiters.stop(self._on_readable)

    def _read_from_disk(self, miss: NotCached) -> None:
        self._disk_reads += 1
        if self._disk_reads > DISK_READS_MAX:
            self._reply.fail("the disk is too slow")
            return
        self._is_loading = True
        task = asyncio.get_running_loop().create_task(self._load(miss))
        _background.add(task)
        task.add_done_callback(_background.discard)

    async def _load(self, miss: NotCached) -> None:
        await self._context.fs.run(miss.load)
        self._is_loading = False
        if self._reply.is_wanted:
            self._run_later()

    def _read_all(self) -> tuple[list[FetchedPartition], bool]:
        """A result for each wanted partition, in order, and whether one of them is an error."""
        results = []
        bytes_left, memory_left = min(self._bytes_max, self._reply.room_bytes), REPLY_MEMORY_BYTES_MAX
        has_error = has_records = False
        self._partitions = []
        self._throttled_bytes = 0
        known: SessionPartition | None = None
        now_s = self._context.clock.monotonic() if self._known is not None else 0.0
        for number, item in enumerate(self._wanted):
            if self._known is not None:
                known = self._known[number]
                quiet = known.quiet
                if quiet is not None and known.wanted is item and quiet.holds(now_s):
                    self._partitions.append(quiet.partition)
                    results.append(NOTHING_NEW)
                    continue
                known.quiet = None
            result = self._read(item, bytes_left, at_least_one=not has_records, known=known)
            has_records = has_records or bool(result.records)
            bytes_left -= len(result.records)
            if not isinstance(result.records, LogSlice):
                memory_left -= len(result.records)
            if has_records and (bytes_left < REPLY_REST_BYTES or memory_left <= 0):
                bytes_left = 0
            has_error = has_error or result.error != 0 or _is_elsewhere(result)
            results.append(result)
            if result.records:
                self._header.habits.fetched_last = (item.topic, item.partition)
        return results, has_error

    def _read(
        self, item: WantedPartition, bytes_left: int, *, at_least_one: bool, known: SessionPartition | None
    ) -> FetchedPartition:
        log_start, diverging, is_withheld = NO_OFFSET, None, False
        aborted = NO_ABORTED if self._read_committed else None
        records: Buffer | LogSlice
        try:
            if self._is_refused:
                raise Refused(ErrorCode.topic_authorization_failed, "only brokers may fetch as replicas")
            topic = item.topic
            name = self._context.partitions.topic_name(topic) if isinstance(topic, UUID) else topic
            partition = self._partition(name, item.partition)
            partition.check_epoch(item.current_leader_epoch)
            bytes_max = max(0, min(item.bytes_max, bytes_left))
            offset = Offset(item.fetch_offset)
            if self._rack and (nearer := self._nearer(partition, offset)) != NO_REPLICA:
                return self._nothing(item, ErrorCode.none, partition.log_start, nearer)
            if self._follower is None:
                records = partition.read(offset, bytes_max, at_least_one=at_least_one, only_stable=self._read_committed)
                if aborted is not None and records and partition.log.has_transactions:
                    aborted = _aborted(partition, offset, partition.log.read_end)
            else:
                log_start = partition.log_start  # Also with an error: a follower that is too far behind begins there.
                diverging = partition.on_follower_fetch(*self._follower, offset, LeaderEpoch(item.last_fetched_epoch))
                records = b""
                if diverging is None:
                    records, is_withheld = self._read_for_follower(partition, offset, bytes_max, at_least_one)
        except Refused as refused:
            return self._nothing(item, refused.code, log_start)
        except OSError:
            return self._nothing(item, ErrorCode.kafka_storage_error)
        result = FetchedPartition(
            item.partition,
            0,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start,
            records,
            aborted,
            diverging,
        )
        if not is_withheld:
            self._partitions.append(partition)
            if known is not None and known.wanted is item:
                known.quiet = self._quiet(partition, known, result)
        return result

    def _quiet(self, partition: Partition, known: SessionPartition, result: FetchedPartition) -> Quiet | None:
        """What to know a partition by that a follower has all of, and has been told all of."""
        leading, log_end = partition.leading, Offset(known.wanted.fetch_offset)
        told = (result.high_watermark, result.last_stable_offset, result.log_start)
        assert self._follower is not None
        if (
            leading is None
            or not leading.log_end == log_end == result.high_watermark
            or result.diverging is not None
            or known.sent != told
            or self._follower.node_id not in leading.isr  # It may be about to join, and is watched.
        ):
            return None
        return Quiet(partition, leading, log_end, self._context.clock.monotonic() + QUIET_S_MAX)

    def _read_for_follower(
        self, partition: Partition, offset: Offset, bytes_max: int, at_least_one: bool
    ) -> tuple[Buffer, bool]:
        """The records, and whether the quota is used up, so that new ones are not worth waking us for."""
        quota, leading, follower = self._context.partitions.leader_quota, partition.leading, self._follower
        assert leading is not None
        assert follower is not None
        if (
            not quota.is_active
            or not leading.is_catching_up(follower.node_id)
            or not quota.is_throttled(*partition.topic_partition)
        ):
            return partition.read_all(offset, bytes_max, at_least_one=at_least_one), False
        now_s = self._context.clock.monotonic()
        room_bytes = quota.room_bytes(now_s) - self._throttled_bytes
        if room_bytes <= 0:
            self._wait_ms = min(self._wait_ms, 1 + int(quota.wait_s(now_s) * 1000))
            return b"", True
        records = partition.read_all(offset, min(bytes_max, room_bytes), at_least_one=at_least_one)
        self._throttled_bytes += len(records)
        return records, False

    def _partition(self, topic: str, number: int) -> Partition:
        partitions = self._context.partitions
        if self._follower is None and self._header.version >= PREFERRED_REPLICA_VERSION:
            return partitions.get(topic, number)
        return partitions.leader(topic, number)

    def _nearer(self, partition: Partition, offset: Offset) -> int:
        """An in-sync follower in the consumer's rack, if we lead in another one; the same at every look."""
        brokers, leading = self._context.metadata.image.brokers, partition.leading
        if leading is None or self._context.config.rack == self._rack:
            return NO_REPLICA
        near = [node_id for node_id, broker in brokers.items() if broker.rack == self._rack and not broker.is_stopping]
        return next((node_id for node_id in sorted(near) if leading.has_in_sync(node_id, offset)), NO_REPLICA)

    def _nothing(
        self, item: WantedPartition, code: ErrorCode, log_start: Offset = NO_OFFSET, preferred: int = NO_REPLICA
    ) -> FetchedPartition:
        nothing, aborted = NO_OFFSET, NO_ABORTED if self._read_committed else None
        return FetchedPartition(item.partition, code, nothing, nothing, log_start, b"", aborted, None, preferred)

    def prepare(self, body: bytes, session: FetchSession) -> PreparedFetch | None:
        """What `body` would be answered now, if that is records of all partitions, which leave from files."""
        try:
            results, has_error = self._read_all()
        except NotCached:
            return None
        if has_error or sum(len(result.records) for result in results) < self._min_bytes:
            return None
        partitions: list[PreparedPartition] = []
        next_offsets: NextOffsets = {}
        for item, partition, result in zip(self._wanted, self._partitions, results, strict=True):
            if partition.leading is None or not isinstance(result.records, LogSlice):
                return None
            told = (result.high_watermark, result.last_stable_offset, result.log_start)
            partitions.append(PreparedPartition(item, told, partition, partition.leading, result.records))
            next_offsets[item.topic, item.partition] = result.records.next_offset
        answered = AnsweredFetch(body, self._request, session, next_offsets)
        topics = _by_topic(zip(self._wanted, results, strict=True))
        parts = pack_fetch_response(self._header.version, 0, session.session_id, topics)
        return PreparedFetch(answered, session.epoch, parts, partitions, self._context.clock.monotonic())

    def _answer(self, results: list[FetchedPartition]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._reply.is_wanted:
            return
        if self._throttled_bytes:
            self._context.partitions.leader_quota.take(self._throttled_bytes, self._context.clock.monotonic())
        session = self._session
        throttle_ms = self._header.throttle_ms
        quotas = self._context.quotas.active
        if quotas is not None and self._follower is None:
            fetch_throttle_ms, is_withheld = quotas.on_fetch(
                self._header.client_id, sum(len(result.records) for result in results)
            )
            self._reply.throttle(fetch_throttle_ms)
            throttle_ms = max(throttle_ms, fetch_throttle_ms)
            if is_withheld:
                self._answer_nothing(throttle_ms)
                return
        news: list[tuple[WantedPartition, FetchedPartition]] = []
        next_offsets: NextOffsets = {}
        for item, result in zip(self._wanted, results, strict=True):
            if result is NOTHING_NEW:
                continue
            if isinstance(result.records, LogSlice):
                next_offsets[item.topic, item.partition] = result.records.next_offset
            if session is not None:
                key = (item.topic, item.partition)
                offsets = (result.high_watermark, result.last_stable_offset, result.log_start)
                if self._is_incremental and not (
                    result.records or result.error or _is_elsewhere(result) or session.is_news(key, offsets)
                ):
                    continue
                session.on_sent(key, offsets, bool(result.records))
            news.append((item, result))
        if len(next_offsets) == len(results):
            self.next_offsets = next_offsets
        session_id = NO_SESSION if session is None else session.session_id
        self._reply.send(pack_fetch_response(self._header.version, 0, session_id, _by_topic(news), throttle_ms))

    def _answer_nothing(self, throttle_ms: int) -> None:
        """The client asks again when it is no longer throttled. A session that would begin here does not."""
        session_id = NO_SESSION
        if self._session is not None and self._is_incremental:
            session_id = self._session.session_id
        elif self._session is not None:
            self._context.fetch_sessions.close(self._session.session_id)
        self._reply.send(pack_fetch_response(self._header.version, 0, session_id, [], throttle_ms))
