"""Offsets inside transactions: whose are taken, when they count, and what must wait for them."""

from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.base.types import Offset
from penstock.coordinator.decision import TransactionalProducer
from penstock.coordinator.group.commands import (
    CommitTxnOffsets,
    FetchOffsets,
    PartitionCommit,
    TopicCommit,
    TopicPartitions,
)
from penstock.coordinator.group.consumer.records import ConsumerGroupMetadata
from penstock.coordinator.group.decision import Decision
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.records import GroupDeleted, GroupRecord, OffsetDeleted
from penstock.wire.batch import NO_PRODUCER_ID

from .consumer.support import ConsumerWorld
from .support import GROUP, SESSION_MS, World

NONE = ErrorCode.none
UNSTABLE = ErrorCode.unstable_offset_commit
RETENTION_MS = GroupConfig().offsets_retention_ms


class TxnWorld(World):
    """A world whose log has transactions."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.journal: list[tuple[GroupRecord, int] | tuple[int, bool]] = []
        super().__init__(config)

    def run(self, decision: Decision, fail: ErrorCode | None = None) -> None:
        self.records = decision.records
        if fail is not None:
            decision = self.shard.on_append_failed(decision, fail, self.now)
        producer_id = NO_PRODUCER_ID if decision.producer is None else decision.producer.producer_id
        for record in decision.records:
            self.journal.append((record, producer_id))
            self.apply(record, producer_id)
        for reply in (*decision.replies_now, *decision.replies_on_commit):
            self.send(reply)

    def send_txn_commit(self, offset: int = 1, *, fail: ErrorCode | None = None, **fields: Any) -> int:
        token = self.new_token()
        partitions = (PartitionCommit(fields.pop("partition", 0), Offset(offset), metadata=fields.pop("metadata", "")),)
        topics = (TopicCommit(fields.pop("topic", "t"), partitions),)
        producer = TransactionalProducer(fields.pop("producer_id", 1), 0)
        command = CommitTxnOffsets(**{"group_id": GROUP, "topics": topics, "producer": producer, **fields})
        self.run(self.shard.commit_txn_offsets(command, token, self.now), fail)
        return token

    def txn_commit(self, offset: int = 1, **fields: Any) -> ErrorCode:
        code: ErrorCode = self.replies[self.send_txn_commit(offset, **fields)].topics[0].partitions[0].error_code
        return code

    def end(self, producer_id: int = 1, *, is_commit: bool = True) -> None:
        self.journal.append((producer_id, is_commit))
        self.shard.apply_end(producer_id, is_commit=is_commit)

    def apply(self, record: GroupRecord, producer_id: int) -> None:
        if producer_id == NO_PRODUCER_ID:
            self.shard.apply(record)
        else:
            self.shard.apply_transactional(record, producer_id)

    def restart(self) -> None:
        self.shard = self.new_shard()
        for entry in self.journal:
            match entry:
                case (int(producer_id), bool(is_commit)):
                    self.shard.apply_end(producer_id, is_commit=is_commit)
                case (record, int(producer_id)):
                    self.apply(record, producer_id)  # type: ignore[arg-type]
        self.run(self.shard.on_loaded(self.now))

    def fetch(self, partition: int = 0, *, topic: str = "t", require_stable: bool = True) -> tuple[int, ErrorCode]:
        token = self.new_token()
        topics = (TopicPartitions(topic, (partition,)),)
        command = FetchOffsets(group_id=GROUP, topics=topics, require_stable=require_stable)
        self.run(self.shard.fetch_offsets(command, token))
        found = self.replies[token].topics[0].partitions[0]
        return found.offset, found.error_code

    def is_clean(self) -> bool:
        """Whether nothing is left of any transaction."""
        pending = self.shard.pending_offsets
        return self.shard.pending_budget.bytes_used == 0 and not pending._groups and not len(pending._open)


# When they count ------------------------------------------------------------------------------------------------------


def test_an_offset_counts_when_its_transaction_is_committed() -> None:
    world = TxnWorld()
    world.commit_offset(3)
    assert world.txn_commit(7) is NONE
    assert world.fetch(require_stable=False) == (3, NONE)
    assert world.fetch() == (-1, UNSTABLE)
    assert world.fetch(partition=1) == (-1, NONE)
    world.end()
    assert world.fetch() == (7, NONE)
    assert world.is_clean()


def test_an_offset_of_an_aborted_transaction_never_counts() -> None:
    world = TxnWorld()
    world.commit_offset(3)
    world.txn_commit(7)
    world.end(is_commit=False)
    assert world.fetch() == (3, NONE)
    assert world.is_clean()


def test_the_last_offset_of_a_transaction_counts() -> None:
    world = TxnWorld()
    world.txn_commit(9)
    world.txn_commit(4)
    world.end()
    assert world.fetch() == (4, NONE)


def test_a_commit_that_came_after_it_in_the_log_stays() -> None:
    world = TxnWorld()
    world.txn_commit(7)
    world.commit_offset(9)
    assert world.fetch() == (-1, UNSTABLE)
    world.end()
    assert world.fetch() == (9, NONE)


def test_of_two_transactions_the_one_that_wrote_last_counts_whichever_ends_last() -> None:
    for order in ((1, 2), (2, 1)):
        world = TxnWorld()
        world.txn_commit(7, producer_id=1)
        world.txn_commit(8, producer_id=2)
        for producer_id in order:
            assert world.fetch() == (-1, UNSTABLE)
            world.end(producer_id)
        assert world.fetch() == (8, NONE)
        assert world.is_clean()


def test_transactions_are_still_open_after_a_restart() -> None:
    world = TxnWorld()
    world.txn_commit(7, producer_id=1)
    world.txn_commit(2, producer_id=2, partition=1)
    world.end(2)
    world.restart()
    assert world.fetch() == (-1, UNSTABLE)
    assert world.fetch(1) == (2, NONE)
    world.end(1)
    assert world.fetch() == (7, NONE)


def test_a_marker_of_a_transaction_that_is_not_ours_changes_nothing() -> None:
    world = TxnWorld()
    world.commit_offset(3)
    world.end(99)
    assert world.fetch() == (3, NONE)


def test_an_offset_that_could_not_be_stored_is_not_pending() -> None:
    world = TxnWorld()
    assert world.txn_commit(7, fail=ErrorCode.not_enough_replicas) is ErrorCode.coordinator_not_available
    assert world.txn_commit(7, fail=ErrorCode.invalid_producer_epoch) is ErrorCode.invalid_producer_epoch
    assert world.fetch() == (-1, NONE)
    assert world.shard.groups == {}


# Whose are taken ------------------------------------------------------------------------------------------------------


def of(member_id: str, generation_id: int, **fields: Any) -> dict[str, Any]:
    return {"member_id": member_id, "generation_id": generation_id, **fields}


def test_reliability_rule_12_a_transaction_of_an_old_generation_is_refused() -> None:
    world = TxnWorld()
    (leader, follower), generation = world.stable()
    assert world.txn_commit(**of(leader, generation)) is NONE
    for member_id in (leader, follower):
        world.send_join(member_id)
    assert world.txn_commit(**of(leader, generation)) is ErrorCode.illegal_generation
    assert world.txn_commit(**of(leader, generation + 1)) is NONE  # Also before the assignment is there.
    assert world.txn_commit(**of("stranger", generation + 1)) is ErrorCode.unknown_member_id
    assert world.txn_commit(**of(leader, -1)) is ErrorCode.illegal_generation


def test_a_member_that_slept_through_its_session_cannot_commit_in_a_transaction() -> None:
    world = TxnWorld()
    (leader, zombie), generation = world.stable()
    world.advance(SESSION_MS - 1)
    world.heartbeat(leader, generation)
    world.advance(1)
    assert world.txn_commit(**of(zombie, generation)) is ErrorCode.unknown_member_id


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    world = TxnWorld()
    (old,), generation = world.stable_static("i")
    world.send_join(instance_id="i")
    assert world.txn_commit(**of(old, generation, instance_id="i")) is ErrorCode.fenced_instance_id
    assert world.txn_commit(**of(old, generation, instance_id="j")) is ErrorCode.unknown_member_id


def test_a_producer_that_names_no_member_is_believed_as_before_kip_447() -> None:
    world = TxnWorld()
    world.stable()
    assert world.txn_commit(5) is NONE
    assert TxnWorld().txn_commit(5) is NONE


def test_a_generation_of_a_group_that_is_not_there_is_refused() -> None:
    world = TxnWorld()
    assert world.txn_commit(**of("m", 3)) is ErrorCode.illegal_generation
    assert world.shard.groups == {}


@pytest.mark.parametrize("group_id", ["", "g" * 40_000])
def test_a_group_must_have_a_name_that_fits_a_record(group_id: str) -> None:
    assert TxnWorld().txn_commit(group_id=group_id) is ErrorCode.invalid_group_id


def test_each_partition_is_answered_for_itself() -> None:
    world = TxnWorld()
    topics = (TopicCommit("t", (PartitionCommit(0, Offset(1)), PartitionCommit(1, Offset(2), metadata="x" * 5_000))),)
    reply = world.replies[world.send_txn_commit(topics=topics)]
    assert [code for _, code in reply.topics[0].partitions] == [NONE, ErrorCode.offset_metadata_too_large]
    assert len(world.records) == 1


# Groups and time ------------------------------------------------------------------------------------------------------


def test_a_group_that_only_commits_in_a_transaction_is_a_group_until_that_is_aborted() -> None:
    world = TxnWorld()
    world.txn_commit()
    assert world.state() == "Empty"
    world.advance(2 * RETENTION_MS)
    world.run(world.shard.expire_offsets(world.now))
    assert world.records == []
    world.end(is_commit=False)
    assert world.shard.groups == {}


def test_a_group_that_others_have_just_left_is_not_dropped_with_an_open_transaction() -> None:
    world = TxnWorld()
    member_id = world.join().member_id
    world.txn_commit()
    world.leave(member_id)
    assert world.state() == "Empty"
    world.end()
    assert world.fetch() == (1, NONE)


def test_an_old_offset_does_not_expire_while_a_transaction_is_about_it() -> None:
    world = TxnWorld()
    world.commit_offset(3)
    world.commit_offset(4, partition=1)
    world.txn_commit(7)
    world.advance(RETENTION_MS)
    world.run(world.shard.expire_offsets(world.now))
    assert world.records == [OffsetDeleted(group_id=GROUP, topic="t", partition=1)]
    world.end(is_commit=False)
    assert world.fetch() == (3, NONE)
    world.run(world.shard.expire_offsets(world.now))
    assert world.records == [OffsetDeleted(group_id=GROUP, topic="t", partition=0), GroupDeleted(group_id=GROUP)]


def test_an_offset_of_a_transaction_expires_by_when_it_was_written() -> None:
    world = TxnWorld()
    world.txn_commit(7)
    world.advance(RETENTION_MS)
    world.end()
    world.run(world.shard.expire_offsets(world.now))
    assert world.fetch() == (-1, NONE)


@pytest.mark.parametrize("is_committed", [True, False])
def test_deleting_an_offset_deletes_what_transactions_have_written(is_committed: bool) -> None:
    world = TxnWorld()
    if is_committed:
        world.commit_offset(3)
    world.txn_commit(7)
    world.txn_commit(8, partition=1)
    assert world.delete_offsets() is NONE
    assert world.records == [OffsetDeleted(group_id=GROUP, topic="t", partition=0)]
    assert world.fetch() == (-1, NONE)
    world.restart()
    world.end()
    assert world.fetch() == (-1, NONE)
    assert world.fetch(1) == (8, NONE)


def test_a_deleted_group_takes_its_open_transactions_along() -> None:
    world = TxnWorld()
    world.commit_offset(3)
    world.txn_commit(7)
    world.txn_commit(8, partition=1)
    world.txn_commit(9, group_id="other")
    assert world.delete_group() is NONE
    assert [record for record in world.records if isinstance(record, OffsetDeleted)] == [
        OffsetDeleted(group_id=GROUP, topic="t", partition=0),
        OffsetDeleted(group_id=GROUP, topic="t", partition=1),
    ]
    assert world.state() is None
    world.end()
    assert (world.state(), world.state("other")) == (None, "Empty")
    assert world.is_clean()


def test_a_deleted_topic_takes_its_pending_offsets_along() -> None:
    world = TxnWorld()
    world.commit_offset(1)
    world.txn_commit(7)
    world.txn_commit(8, topic="u")
    world.run(world.shard.on_topics_deleted({"t"}))
    assert world.records == [OffsetDeleted(group_id=GROUP, topic="t", partition=0)]
    world.end()
    assert world.fetch() == (-1, NONE)
    assert world.fetch(topic="u") == (8, NONE)


def test_a_transaction_goes_on_when_its_group_becomes_a_consumer_group() -> None:
    world = TxnWorld()
    world.txn_commit(7)
    world.run(Decision(records=[ConsumerGroupMetadata(group_id=GROUP, epoch=1)]))
    assert GROUP not in world.shard.groups
    world.advance(2 * RETENTION_MS)
    world.run(world.shard.expire_offsets(world.now))
    assert world.records == []
    world.end()
    assert world.fetch() == (7, NONE)


class ConsumerTxnWorld(TxnWorld, ConsumerWorld):
    pass


def test_a_consumer_group_knows_its_members_by_epoch() -> None:
    world = ConsumerTxnWorld()
    epoch = world.enter_new("m", instance_id="i").member_epoch
    assert world.txn_commit(7, **of("m", epoch, instance_id="i")) is NONE
    assert world.txn_commit(7, **of("m", epoch - 1)) is ErrorCode.illegal_generation  # Producers know no other.
    assert world.txn_commit(7, **of("x", epoch)) is ErrorCode.unknown_member_id
    assert world.txn_commit(7, **of("m", epoch, instance_id="j")) is ErrorCode.fenced_instance_id
    assert world.txn_commit(7) is ErrorCode.unknown_member_id
    world.beat("m", -1)
    assert world.txn_commit(8) is NONE
    assert world.txn_commit(8, **of("m", epoch)) is ErrorCode.unknown_member_id
    world.end()
    assert world.fetch() == (8, NONE)


def test_a_consumer_group_that_goes_leaves_its_open_transaction_to_a_group_that_only_commits() -> None:
    world = ConsumerTxnWorld()
    epoch = world.enter_new("m").member_epoch
    world.txn_commit(7, **of("m", epoch))
    world.beat("m", -1)
    out = Decision()
    world.shard.consumers.delete(world.group, out)
    world.run(out)
    assert world.state() == "Empty"
    world.end()
    assert world.fetch() == (7, NONE)


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_what_open_transactions_hold_is_bounded_and_given_back() -> None:
    world = TxnWorld(GroupConfig(pending_offsets_bytes_max=3_000))
    assert world.txn_commit(1, producer_id=1) is NONE
    assert world.txn_commit(2, producer_id=2) is NONE
    assert world.txn_commit(3, producer_id=3) is ErrorCode.coordinator_not_available
    assert world.records == []
    world.end(1)
    assert world.txn_commit(3, producer_id=3) is NONE
    world.shard.unload()
    assert world.shard.pending_budget.bytes_used == 0
