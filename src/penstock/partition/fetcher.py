"""Copies all the partitions that one other broker leads and this one follows: one connection, one Fetch at a time.

The offset that is fetched from is the acknowledgement: everything below it is safe here. So what a reply brought is
synced (where the topic wants that) before the next Fetch leaves, and while the disk works the leader gathers more.

The leader keeps a session (KIP-227): a Fetch names only the partitions whose offset has moved. When partitions are
added while a Fetch waits at the leader, the connection is given up for a new one: else they would wait as well, and no
reply can then be of an assignment that is over.

Throttled partitions (replication_quota.py) rest while more of them was copied than may be; the others go on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from penstock.base.clock import Clock
from penstock.base.errors import BadPeer, ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.types import LeaderEpoch, NodeId, Offset
from penstock.partition.partition import Partition
from penstock.partition.peers import PeerLink, PeerLinks, PeerLost
from penstock.partition.replication_quota import ReplicationQuota
from penstock.wire.batch import CorruptBatch
from penstock.wire.follower_fetch import (
    FOLLOWER_VERSION,
    Copied,
    CopyFrom,
    FollowerReply,
    pack_follower_fetch,
    read_follower_reply,
)

log = get_logger(__name__)

FETCH = 1
NO_SESSION = 0
REPLY_BYTES_MAX = 4 << 20  # As much as a leader sends at once.
RECONNECT_S = 0.1  # A leader that has just died is given up by the image, not by us.
REPLY_S_MAX = 10.0  # Beyond the wait that we ask for.
REST_S = 0.05  # The leader's image or ours is behind: it will not be for long.
FAULT_REST_S = 1.0  # The disk, here or there.
# For the throttle. Short: whoever comes in sync meanwhile is waited for.
THROTTLE_REST_S_MAX = 0.1

SESSION_ERRORS = (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)
# The image of one of us is behind.
EXPECTED_ERRORS = frozenset(
    (
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    )
)

Key = tuple[UUID, int]


@dataclass(slots=True, eq=False)
class Following:
    partition: Partition
    leader_epoch: LeaderEpoch
    rests_until_s: float | None = None  # Not fetched before that: something was wrong with it.
    is_in_sync: bool = True  # As the image has it.
    fault: str = ""  # What was wrong with it, and has been logged.


class Fetcher:
    def __init__(
        self,
        *,
        leader: NodeId,
        node_id: NodeId,
        broker_epoch: Callable[[], int],
        links: PeerLinks,
        clock: Clock,
        wait_max_ms: int,
        quota: ReplicationQuota,
    ) -> None:
        self._leader = leader
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._links = links
        self._clock = clock
        self._wait_max_ms = wait_max_ms
        self._quota = quota
        self._following: dict[Key, Following] = {}
        self._catching_up: dict[Key, Following] = {}  # Those that are not in sync.
        self._resting: dict[Key, Following] = {}
        self._moved: dict[Key, None] = {}  # What the leader's session does not know yet.
        self._forgotten: dict[Key, None] = {}  # What it still knows and shall not.
        self._session_id = NO_SESSION
        self._session_epoch = 0
        self._link: PeerLink | None = None
        self._is_interrupted = False
        self._is_unreachable = False
        self._unsafe: set[Partition] = set()  # Copied to, and not yet synced.
        self._all_safe = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def follow(self, partition: Partition, leader_epoch: LeaderEpoch, *, is_in_sync: bool) -> None:
        """Copy the partition from now on."""
        key = _key(partition)
        known = self._following.get(key)
        if known is not None and known.partition is partition and known.leader_epoch == leader_epoch:
            self._note_sync(known, is_in_sync)
            return
        if known is not None:
            self.drop(known.partition)
        following = self._following[key] = Following(partition, leader_epoch)
        self._note_sync(following, is_in_sync)
        partition.on_copies_safe = partial(self._on_safe, partition)
        self._moved[key] = None
        self._forgotten.pop(key, None)
        if partition.is_truncating or not partition.is_safe:
            self._rest(following, 0.0)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"fetcher from {self._leader}")
        elif self._link is not None and not self._is_interrupted:
            # At the end of this turn: an image brings many partitions at once.
            self._is_interrupted = True
            asyncio.get_running_loop().call_soon(self._link.close)

    def _note_sync(self, following: Following, is_in_sync: bool) -> None:
        following.is_in_sync = is_in_sync
        if is_in_sync:
            self._catching_up.pop(_key(following.partition), None)
        else:
            self._catching_up[_key(following.partition)] = following

    def drop(self, partition: Partition) -> None:
        """Copy the partition no more."""
        key = _key(partition)
        following = self._following.get(key)
        if following is None or following.partition is not partition:
            return
        del self._following[key]
        self._catching_up.pop(key, None)
        self._resting.pop(key, None)
        self._moved.pop(key, None)
        self._forgotten[key] = None
        partition.on_copies_safe = lambda: None
        self._unsafe.discard(partition)
        self._maybe_go_on()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for following in list(self._following.values()):
            self.drop(following.partition)

    # The loop

    async def _run(self) -> None:
        try:
            while self._following:
                try:
                    await self._connect_and_copy()
                except Exception:
                    # A task root. To give up would leave all partitions of this leader without a copy.
                    log.exception("fetcher failed and begins anew", leader=self._leader)
                    await asyncio.sleep(FAULT_REST_S)
        finally:
            self._task = None

    async def _connect_and_copy(self) -> None:
        try:
            self._link = await self._links.connect(self._leader)
            self._is_interrupted = False
            if self._is_unreachable:
                log.info("leader can be reached again", leader=self._leader)
            self._is_unreachable = False
            await self._copy_over(self._link)
        except (PeerLost, BadPeer) as error:
            if not self._is_interrupted:
                if not self._is_unreachable:
                    log.warning("leader cannot be reached", leader=self._leader, reason=error)
                self._is_unreachable = True
                await asyncio.sleep(RECONNECT_S)
        finally:
            link, self._link = self._link, None
            if link is not None:
                link.close()

    async def _copy_over(self, link: PeerLink) -> None:
        self._begin_session()
        while self._following:
            if self._quota.is_active:
                self._hold_back()
            wait_s = self._wake_rested()
            if len(self._resting) == len(self._following):
                await asyncio.sleep(wait_s)
                continue
            body = self._request(int(wait_s * 1000))
            reply = await link.ask_raw(FETCH, FOLLOWER_VERSION, body, self._wait_max_ms / 1000 + REPLY_S_MAX)
            if self._is_interrupted:  # It came in the turn in which partitions were added, be it the same ones anew.
                raise PeerLost("partitions have been added")
            await self._take(read_follower_reply(reply))

    def _begin_session(self) -> None:
        self._session_id, self._session_epoch = NO_SESSION, 0
        self._forgotten.clear()

    def _hold_back(self) -> None:
        """Let the throttled partitions rest when more of them was copied than may be."""
        wait_s = self._quota.wait_s(self._clock.monotonic())
        if wait_s > 0:
            for key, following in self._catching_up.items():
                if key not in self._resting and self._is_throttled(following):
                    self._rest(following, min(wait_s, THROTTLE_REST_S_MAX))

    def _wake_rested(self) -> float:
        """Take up again what has rested long enough; gives how long the next Fetch may wait."""
        wait_s = self._wait_max_ms / 1000
        if self._resting:
            now_s = self._clock.monotonic()
            for key, following in list(self._resting.items()):
                assert following.rests_until_s is not None
                partition = following.partition
                if following.rests_until_s <= now_s and partition.is_safe and not partition.is_truncating:
                    del self._resting[key]
                    following.rests_until_s = None
                    self._moved[key] = None
                else:
                    wait_s = min(wait_s, max(REST_S, following.rests_until_s - now_s))
        return wait_s

    def _request(self, max_wait_ms: int) -> bytearray:
        keys = self._moved if self._session_epoch else self._following
        bytes_max = self._throttled_bytes_max() if self._quota.is_active else {}
        wanted = [_copy_from(self._following[key], bytes_max.get(key)) for key in keys if key not in self._resting]
        body = pack_follower_fetch(
            node_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            max_wait_ms=max_wait_ms,
            bytes_max=REPLY_BYTES_MAX,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            wanted=wanted,
            forgotten=self._forgotten if self._session_epoch else (),
        )
        self._moved.clear()
        self._forgotten.clear()
        return body

    def _throttled_bytes_max(self) -> dict[Key, int]:
        """How much of each throttled partition may come, so that they do not use up more than there is room for."""
        throttled = [
            key
            for key, following in self._catching_up.items()
            if key not in self._resting and self._is_throttled(following)
        ]
        if not throttled:
            return {}
        each = max(1, self._quota.room_bytes(self._clock.monotonic()) // len(throttled))
        return dict.fromkeys(throttled, each)

    # Replies

    async def _take(self, reply: FollowerReply) -> None:
        if reply.error in SESSION_ERRORS:
            self._begin_session()
            return
        if reply.error:
            raise BadPeer(f"Fetch is refused: {ErrorCode(reply.error).name}")
        self._session_id = reply.session_id
        self._session_epoch = self._session_epoch + 1 if reply.session_id != NO_SESSION else 0
        cuts: list[Awaitable[None]] = []
        for item in reply.partitions:
            following = self._following.get((item.topic_id, item.partition))
            if following is not None:
                self._take_partition(following, item, cuts)
        if cuts:
            # To the end of all: while one is under way nobody may ask for its partition, be it after another's failure.
            for outcome in await asyncio.gather(*cuts, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        if self._unsafe:
            self._all_safe.clear()
            await self._all_safe.wait()

    def _take_partition(self, following: Following, item: Copied, cuts: list[Awaitable[None]]) -> None:
        partition = following.partition
        if item.error == ErrorCode.offset_out_of_range and item.log_start > partition.log.log_end:
            cuts.append(self._cut(following, partial(partition.start_over, Offset(item.log_start))))
        elif item.error:
            self._on_error(following, ErrorCode(item.error))
        elif item.diverging is not None:
            epoch, end = item.diverging
            cuts.append(self._cut(following, partial(partition.truncate, (LeaderEpoch(epoch), Offset(end)))))
        elif item.records and (base := partition.base_to_begin_at(item.records)) is not None:
            cuts.append(self._begin_and_copy(following, item, base))
        else:
            self._copy(following, item)

    def _copy(self, following: Following, item: Copied) -> None:
        partition = following.partition
        try:
            if item.records:
                self._moved[_key(partition)] = None
                if self._quota.is_active and self._is_throttled(following):
                    self._quota.take(len(item.records), self._clock.monotonic())
                partition.copy(item.records)
            partition.on_leader_offsets(Offset(item.high_watermark), Offset(item.log_start))
            following.fault = ""
        except (CorruptBatch, Refused) as error:
            self._on_fault(following, f"records of the leader cannot be stored: {error}")
        if not partition.is_safe and partition.log.failure is None:  # Else nobody will sync it any more.
            self._unsafe.add(partition)

    async def _begin_and_copy(self, following: Following, item: Copied, base: Offset) -> None:
        """Copy from this reply what begins before the log: its leader would refuse to be asked from there on."""
        partition = following.partition
        await self._cut(following, partial(partition.begin_at, base))
        if self._following.get(_key(partition)) is following and partition.log.log_end == base:
            self._copy(following, item)

    def _is_throttled(self, following: Following) -> bool:
        return not following.is_in_sync and self._quota.is_throttled(*following.partition.topic_partition)

    def _on_error(self, following: Following, code: ErrorCode) -> None:
        if code in EXPECTED_ERRORS:
            self._rest(following, REST_S)
        else:
            self._on_fault(following, f"the leader refuses it: {code.name}")

    def _on_fault(self, following: Following, fault: str) -> None:
        if following.fault != fault:  # Once: a disk that is full stays so, and there are thousands of partitions.
            following.fault = fault
            log.error("partition cannot be copied", partition=following.partition.topic_partition, reason=fault)
        self._rest(following, FAULT_REST_S)

    async def _cut(self, following: Following, cut: Callable[[], Awaitable[None]]) -> None:
        key = _key(following.partition)
        if self._following.get(key) is not following:
            return  # It was given to another since the reply was read, who may count on what this one lacks.
        try:
            await cut()
            if self._following.get(key) is following:  # Else that has happened meanwhile.
                self._moved[key] = None
        except (Refused, OSError) as error:
            self._on_fault(following, f"its log cannot be cut: {error}")

    def _rest(self, following: Following, seconds: float) -> None:
        key = _key(following.partition)
        if self._following.get(key) is following:
            following.rests_until_s = self._clock.monotonic() + seconds
            self._resting[key] = following
            self._forgotten[key] = None

    # The disk

    def _on_safe(self, partition: Partition) -> None:
        if partition in self._unsafe and (partition.is_safe or partition.log.failure is not None):
            self._unsafe.discard(partition)
            self._maybe_go_on()

    def _maybe_go_on(self) -> None:
        if not self._unsafe:
            self._all_safe.set()


def _key(partition: Partition) -> Key:
    return partition.topic_id, partition.topic_partition.partition


def _copy_from(following: Following, bytes_max: int | None) -> CopyFrom:
    offset, last_epoch = following.partition.copied_end
    topic_id, number = _key(following.partition)
    return CopyFrom(topic_id, number, following.leader_epoch, offset, last_epoch, bytes_max)
