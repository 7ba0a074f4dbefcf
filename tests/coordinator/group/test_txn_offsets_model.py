"""Groups that commit inside and outside of transactions, against a model that knows nothing but the log."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.records import OffsetCommitted, OffsetDeleted
from penstock.wire.batch import NO_PRODUCER_ID

from .support import GROUP
from .test_txn_offsets import RETENTION_MS, UNSTABLE, TxnWorld

PLACES = (("t", 0), ("t", 1), ("u", 0))
PRODUCERS = (1, 2, 3)

places, producers = st.sampled_from(PLACES), st.sampled_from(PRODUCERS)


class TxnOffsets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = TxnWorld()
        self.next_offset = 0

    @rule(place=places)
    def commit(self, place: tuple[str, int]) -> None:
        self.next_offset += 1
        self.world.commit_offset(self.next_offset, topic=place[0], partition=place[1])

    @rule(place=places, producer_id=producers, is_stored=st.booleans())
    def commit_in_transaction(self, place: tuple[str, int], producer_id: int, is_stored: bool) -> None:
        self.next_offset += 1
        self.world.txn_commit(
            self.next_offset,
            topic=place[0],
            partition=place[1],
            producer_id=producer_id,
            fail=None if is_stored else ErrorCode.not_enough_replicas,
        )

    @rule(producer_id=producers, is_commit=st.booleans())
    def end(self, producer_id: int, is_commit: bool) -> None:
        self.world.end(producer_id, is_commit=is_commit)

    @rule(place=places)
    def delete_offset(self, place: tuple[str, int]) -> None:
        self.world.delete_offsets(*place)

    @rule()
    def delete_group(self) -> None:
        self.world.delete_group()

    @rule()
    def delete_topic(self) -> None:
        self.world.run(self.world.shard.on_topics_deleted({"t"}))

    @rule()
    def expire(self) -> None:
        self.world.advance(RETENTION_MS)
        pending = self.by_hand()[1]
        self.world.run(self.world.shard.expire_offsets(self.world.now))
        deleted = {
            (record.topic, record.partition) for record in self.world.records if isinstance(record, OffsetDeleted)
        }
        assert not deleted & pending

    @rule()
    def restart(self) -> None:
        self.world.restart()

    def by_hand(self) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
        """Committed offsets and pending places, as Kafka finds them: by comparing where the records are in the log."""
        committed: dict[tuple[str, int], tuple[int, int]] = {}
        pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        for position, (what, who) in enumerate(self.world.journal):
            match what:
                case int():
                    for place, written in pending.pop(what, {}).items():
                        if who and written[0] > committed.get(place, (-1, -1))[0]:
                            committed[place] = written
                case OffsetCommitted():
                    target: Any = committed if who == NO_PRODUCER_ID else pending.setdefault(who, {})
                    target[what.topic, what.partition] = (position, what.offset)
                case OffsetDeleted():
                    for places in (committed, *pending.values()):
                        places.pop((what.topic, what.partition), None)
        offsets = {place: offset for place, (_, offset) in committed.items()}
        return offsets, {place for written in pending.values() for place in written}

    @invariant()
    def offsets_are_what_the_log_says(self) -> None:
        committed, pending = self.by_hand()
        for topic, partition in PLACES:
            offset = committed.get((topic, partition), -1)
            assert self.world.fetch(partition, topic=topic, require_stable=False) == (offset, ErrorCode.none)
            stable = (-1, UNSTABLE) if (topic, partition) in pending else (offset, ErrorCode.none)
            assert self.world.fetch(partition, topic=topic) == stable
        assert not (committed or pending) or self.world.state() == "Empty"
        assert self.world.is_clean() or pending
        assert (GROUP in self.world.shard.pending_offsets) == bool(pending)


TestTxnOffsets = TxnOffsets.TestCase
TestTxnOffsets.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
