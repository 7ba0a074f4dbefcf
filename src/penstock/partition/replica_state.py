"""What a leader knows of its partition's replicas: who is in sync, and up to where everything is committed.

In: where followers fetch from, how far the leader's own log is safe, what the controller has decided, and the time.
Out: the high watermark, and changes of the in-sync replicas (ISR) to ask the controller for. No I/O, no clock.

    committed   what every in-sync replica has; a follower has what lies below the offset that it fetches from
    isr         as the controller last decided
    pending     what we have asked for and have no answer to; until it comes, records must be on the members of both,
                for we do not know which of the two counts (KIP-497)

A leader is one object for one leader epoch. Where a follower was in an earlier epoch says nothing about this one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base.types import NO_OFFSET, LeaderEpoch, NodeId, Offset

NO_BROKER_EPOCH = -1


class IsrChange(NamedTuple):
    """To be asked of the controller, which refuses it unless the partition's epoch is still `partition_epoch`."""

    isr: frozenset[NodeId]
    leader_epoch: LeaderEpoch
    partition_epoch: int
    broker_epochs: Mapping[NodeId, int]  # Of the members: one that was started anew since has to catch up again.


@dataclass(slots=True)
class Follower:
    fetch_offset: Offset = NO_OFFSET  # All below it are safe with the follower; NO_OFFSET: not heard of yet.
    broker_epoch: int = NO_BROKER_EPOCH  # That it fetched with.
    fetched_at_s: float = float("-inf")
    log_end_then: Offset = NO_OFFSET  # The leader's, when it last fetched.
    caught_up_at_s: float = float("-inf")  # When it last had all that there was.


class ReplicaState:
    """The replicas as their leader sees them, from becoming the leader in `leader_epoch` to the end of that epoch."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        leader_epoch: LeaderEpoch,
        partition_epoch: int,
        replicas: Collection[NodeId],
        isr: Collection[NodeId],
        log_end: Offset,
        high_watermark: Offset,
        now_s: float,
        is_recovering: bool = False,
    ) -> None:
        """`is_recovering`: elected without being in sync, and the controller is to be told that this was seen to."""
        assert node_id in isr, f"leader {node_id} is not in sync: {isr}"
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.isr = frozenset(isr)
        self.is_recovering = is_recovering
        self.pending: frozenset[NodeId] | None = None
        self.epoch_start = log_end  # The first offset of this epoch.
        self.high_watermark = high_watermark
        self.log_end = log_end
        self.safe_end = high_watermark  # Of the leader's own log: synced, or written where that is enough.
        # Members of the ISR have as long as a lag is tolerated to show up, counted from now.
        self._followers = {node: Follower(caught_up_at_s=now_s) for node in replicas if node != node_id}

    @property
    def is_alone(self) -> bool:
        """Whether there is no other replica: what the leader has is then committed."""
        return not self._followers

    @property
    def replica_count(self) -> int:
        return 1 + len(self._followers)

    def has_in_sync(self, node_id: NodeId, offset: Offset) -> bool:
        """Whether a follower is in sync and has the record at `offset`."""
        follower = self._followers.get(node_id)
        return follower is not None and node_id in self.isr and follower.fetch_offset > offset

    def is_follower(self, node_id: NodeId) -> bool:
        return node_id in self._followers

    def is_catching_up(self, node_id: NodeId) -> bool:
        """Whether nobody waits for this follower: it is not in sync, and not about to be."""
        return node_id not in self.isr and (self.pending is None or node_id not in self.pending)

    @property
    def maximal_isr(self) -> frozenset[NodeId]:
        """Everyone who is in sync or may be."""
        return self.isr if self.pending is None else self.isr | self.pending

    # What happens

    def on_appended(self, log_end: Offset) -> None:
        self.log_end = log_end

    def on_safe(self, safe_end: Offset, *, isr_min: int) -> bool:
        """The leader's own log is safe up to `safe_end`; gives whether the high watermark has moved."""
        self.safe_end = safe_end
        return self.advance(isr_min=isr_min)

    def on_fetch(self, node_id: NodeId, broker_epoch: int, fetch_offset: Offset, now_s: float, *, isr_min: int) -> bool:
        """A follower has everything below `fetch_offset`; gives whether the high watermark has moved.

        The caller has seen to it that the offset is in this log and of this history (leader epochs).
        """
        follower = self._followers.get(node_id)
        if follower is None:
            return False  # Not a replica any more; the image will tell it so.
        if fetch_offset >= self.log_end:
            follower.caught_up_at_s = now_s
        elif fetch_offset >= follower.log_end_then:
            # It has what there was when it last asked: it keeps up with a leader that is being written to.
            follower.caught_up_at_s = max(follower.caught_up_at_s, follower.fetched_at_s)
        follower.fetch_offset, follower.broker_epoch = fetch_offset, broker_epoch
        follower.fetched_at_s, follower.log_end_then = now_s, self.log_end
        return node_id in self.maximal_isr and self.advance(isr_min=isr_min)

    def on_decided(
        self,
        *,
        partition_epoch: int,
        replicas: Collection[NodeId],
        isr: Collection[NodeId],
        now_s: float,
        isr_min: int,
        is_recovering: bool = False,
    ) -> bool:
        """The partition's state, of the same leader epoch, as it now is; gives whether the high watermark has moved."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch, self.isr, self.pending = partition_epoch, frozenset(isr), None
        self.is_recovering = is_recovering
        for node_id in replicas:
            if node_id != self.node_id and node_id not in self._followers:
                self._followers[node_id] = Follower(caught_up_at_s=now_s)
        for node_id in [node_id for node_id in self._followers if node_id not in replicas]:
            del self._followers[node_id]
        return self.advance(isr_min=isr_min)

    def on_refused(self) -> None:
        """The controller has not taken our change, for certain. A change that may have been taken stays pending."""
        self.pending = None

    # What follows from it

    def advance(self, *, isr_min: int) -> bool:
        """Move the high watermark to what is committed; gives whether it has moved.

        Not while the ISR is smaller than `min.insync.replicas`: what a consumer has then seen, a single failure could
        take away (KIP-966).
        """
        if len(self.isr) < isr_min:
            return False
        committed = self.safe_end
        for node_id in self.maximal_isr:
            if node_id != self.node_id:
                committed = min(committed, self._followers[node_id].fetch_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def isr_change(self, now_s: float, *, lag_max_s: float, eligible_epochs: Mapping[NodeId, int]) -> IsrChange | None:
        """The change of the ISR that is due, if any; it is then pending. One at a time.

        `eligible_epochs`: the brokers that may be in sync (alive, not about to stop), and the epochs of their
        registrations.
        """
        if self.pending is not None:
            return None
        in_sync = {self.node_id}
        for node_id, follower in self._followers.items():
            if self._stays(node_id, follower, now_s, lag_max_s) or self._joins(node_id, follower, eligible_epochs):
                in_sync.add(node_id)
        if in_sync == self.isr and not self.is_recovering:
            return None
        self.pending = frozenset(in_sync)
        epochs = {node_id: self._followers[node_id].broker_epoch for node_id in in_sync if node_id != self.node_id}
        return IsrChange(self.pending, self.leader_epoch, self.partition_epoch, epochs)

    def _stays(self, node_id: NodeId, follower: Follower, now_s: float, lag_max_s: float) -> bool:
        if node_id not in self.isr:
            return False
        return follower.fetch_offset >= self.log_end or now_s - follower.caught_up_at_s <= lag_max_s

    def _joins(self, node_id: NodeId, follower: Follower, eligible_epochs: Mapping[NodeId, int]) -> bool:
        """Whether a follower has all that is committed and has begun with this epoch, in its present life."""
        return (
            node_id not in self.isr
            and follower.fetch_offset >= max(self.high_watermark, self.epoch_start)
            and eligible_epochs.get(node_id, NO_BROKER_EPOCH - 1) == follower.broker_epoch
        )
