"""Fetch sessions (KIP-227): the broker remembers what a consumer fetches, which then sends only what changed.

Session epoch -1 asks for no session, 0 for a new one, and each later fetch carries the next number. A reply within a
session leaves out partitions that have nothing new. Pure: `now_s` is passed in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import Offset
from penstock.partition.partition import Partition
from penstock.partition.replica_state import ReplicaState
from penstock.wire.fetch_request import WantedPartition

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

PARTITIONS_MAX = 250_000  # In all sessions together: 100 MB, and 250 for each of the default 1000 sessions.
EVICT_AFTER_S = 120.0  # Kafka's: a session used within the last two minutes is not evicted for a new one.


# How long a follower may have nothing to do with a partition before it is looked at all the same: how far a follower is
# behind is counted from when it was last seen to have all, and a tenth of the shortest lag that makes sense is nothing.
QUIET_S_MAX = 0.25


class Quiet(NamedTuple):
    """A partition that its follower has all of, and knows all of: there is nothing to say until it is written to.

    A broker follows thousands of partitions, of which few are busy at a time, and fetches from all of them at once.
    """

    partition: Partition
    leading: ReplicaState
    log_end: Offset
    until_s: float

    def holds(self, now_s: float) -> bool:
        return now_s < self.until_s and self.partition.leading is self.leading and self.leading.log_end == self.log_end


@dataclass(slots=True)
class SessionPartition:
    wanted: WantedPartition
    sent: tuple[int, int, int] | None = None  # High watermark, last stable offset and log start in the last reply.
    quiet: Quiet | None = None  # For a follower.


@dataclass(slots=True, eq=False)
class FetchSession:
    session_id: int
    epoch: int = 1  # What the next fetch must carry.
    used_at_s: float = 0.0
    by_id: bool = False  # How its topics are named: a client that changes that has to begin anew.
    # In order of service. A partition that had records goes to the end, so that no other starves behind it.
    partitions: dict[tuple[str | UUID, int], SessionPartition] = field(default_factory=dict)

    def update(self, wanted: Iterable[WantedPartition], forgotten: Iterable[tuple[str | UUID, int]]) -> None:
        for key in forgotten:
            self.partitions.pop(key, None)
        for item in wanted:
            key = (item.topic, item.partition)
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = SessionPartition(item)
            else:
                known.wanted, known.quiet = item, None

    def on_sent(self, key: tuple[str | UUID, int], offsets: tuple[int, int, int], has_records: bool) -> None:
        """Note what a reply told of a partition."""
        known = self.partitions.get(key)
        if known is not None:
            known.sent = offsets
            if has_records:
                self.partitions[key] = self.partitions.pop(key)

    def is_news(self, key: tuple[str | UUID, int], offsets: tuple[int, int, int]) -> bool:
        known = self.partitions.get(key)
        return known is None or known.sent != offsets


class FetchSessionCache:
    def __init__(self, *, slots: int, random: Random) -> None:
        self._slots = slots
        self._random = random
        self._sessions: dict[int, FetchSession] = {}  # In order of use, the longest unused first.

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, now_s: float) -> FetchSession | None:
        """A new session; None when all slots are taken by sessions in use, and the client then goes without."""
        if self._slots <= 0:
            return None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()))
            if now_s - oldest.used_at_s < EVICT_AFTER_S:
                return None
            del self._sessions[oldest.session_id]
        session_id = self._random.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = FetchSession(session_id, used_at_s=now_s)
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, now_s: float) -> FetchSession:
        """The session for its next fetch; Refused when it is not known or the epoch is not the one due."""
        session = self._sessions.get(session_id)
        if session is None:
            raise Refused(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise Refused(ErrorCode.invalid_fetch_session_epoch, f"epoch {session.epoch} is due")
        session.epoch = epoch + 1 if epoch < EPOCH_MAX else 1
        session.used_at_s = now_s
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def update(
        self,
        session: FetchSession,
        wanted: Sequence[WantedPartition],
        forgotten: Iterable[tuple[str | UUID, int]] = (),
    ) -> None:
        """Note what the client now fetches; Refused, and the session closed, when the sessions are too much to keep.

        The client then goes on without a session: it names all its partitions in each fetch.
        """
        before = len(session.partitions)
        session.update(wanted, forgotten)
        if len(session.partitions) <= before:
            return  # As with nearly every fetch. There may be a thousand sessions to look at.
        if sum(len(known.partitions) for known in self._sessions.values()) > PARTITIONS_MAX:
            self.close(session.session_id)
            raise Refused(ErrorCode.fetch_session_id_not_found, f"more than {PARTITIONS_MAX} partitions in sessions")

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
