"""Committed offsets: whose are taken, what is given back, what may be deleted."""

from typing import Any
from uuid import UUID

import pytest

from penstock.base.errors import ErrorCode
from penstock.base.types import LeaderEpoch, Offset
from penstock.coordinator.group.commands import (
    CommitOffsets,
    FetchOffsets,
    PartitionCommit,
    Protocol,
    TopicCommit,
)
from penstock.coordinator.group.records import OffsetCommitted, OffsetDeleted
from penstock.coordinator.group.replies import FetchedOffset, FetchedTopic

from .support import SESSION_MS, World, subscription

NONE = ErrorCode.none


def of(member_id: str, generation_id: int, **fields: Any) -> dict[str, Any]:
    return {"member_id": member_id, "generation_id": generation_id, **fields}


# Who may commit -------------------------------------------------------------------------------------------------------


def test_a_member_of_the_generation_commits() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    assert world.commit_offset(5, **of(leader, generation)) is NONE
    assert world.commit_offset(7, partition=1, **of(follower, generation)) is NONE
    assert (world.offset(), world.offset(partition=1)) == (5, 7)


def test_reliability_rule_12_a_commit_of_an_old_generation_is_refused() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    for member_id in (leader, follower):
        world.send_join(member_id)
    world.sync_all([leader, follower], generation + 1)
    assert world.commit_offset(**of(leader, generation)) is ErrorCode.illegal_generation
    assert world.offset() == -1


def test_a_member_that_slept_through_its_session_cannot_commit() -> None:
    world = World()
    (leader, zombie), generation = world.stable()
    world.advance(SESSION_MS - 1)
    world.heartbeat(leader, generation)
    world.advance(1)
    assert world.commit_offset(**of(zombie, generation)) is ErrorCode.unknown_member_id
    world.join(leader)
    assert world.commit_offset(**of(zombie, generation + 1)) is ErrorCode.unknown_member_id
    assert world.log[-1][0][:2] == b"\0\2"  # Nothing but the group itself was stored.


def test_a_stranger_cannot_commit() -> None:
    world = World()
    _, generation = world.stable()
    assert world.commit_offset(**of("stranger", generation)) is ErrorCode.unknown_member_id


def test_members_commit_before_they_rejoin() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    world.send_join(leader)
    assert world.commit_offset(**of(follower, generation)) is NONE


def test_nobody_commits_while_the_assignment_is_awaited() -> None:
    world = World()
    (leader, _), generation = world.joined()
    assert world.commit_offset(**of(leader, generation)) is ErrorCode.rebalance_in_progress


def test_a_commit_keeps_the_session() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    for _ in range(3):
        world.advance(SESSION_MS - 1)
        assert world.commit_offset(**of(member_id, generation)) is NONE


def test_without_a_group_anyone_commits() -> None:
    world = World()
    assert world.commit_offset(9) is NONE
    assert world.offset() == 9
    assert world.state() == "Empty"
    assert world.commit_offset(10) is NONE


def test_an_empty_group_takes_commits_without_a_generation_only() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.leave(member_id)
    assert world.commit_offset(3) is NONE
    assert world.commit_offset(4, **of(member_id, generation)) is ErrorCode.unknown_member_id
    assert world.offset() == 3


def test_a_group_with_members_takes_no_commit_without_a_generation() -> None:
    world = World()
    world.stable()
    assert world.commit_offset(3) is ErrorCode.unknown_member_id


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)])
def test_a_generation_of_a_group_that_is_not_there_is_refused(version: int, code: ErrorCode) -> None:
    world = World()
    assert world.commit_offset(**of("m", 3), version=version) is code
    assert world.shard.groups == {}


def test_the_empty_group_id_can_commit_as_in_kafka() -> None:
    world = World()
    assert world.commit_offset(4, group_id="") is NONE
    assert world.offset(group_id="") == 4


# What is committed ----------------------------------------------------------------------------------------------------


def test_a_commit_is_answered_when_it_is_committed_and_read_no_sooner() -> None:
    world = World(auto_commit=False)
    token = world.send_commit(5)
    assert token not in world.replies
    with pytest.raises(KeyError):
        world.offset()
    world.commit()
    assert world.replies[token].topics[0].partitions[0].error_code is NONE
    assert world.offset() == 5


@pytest.mark.parametrize(
    ("append_code", "code"),
    [
        (ErrorCode.message_too_large, ErrorCode.invalid_commit_offset_size),
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
    ],
)
def test_a_commit_that_cannot_be_stored_is_refused(append_code: ErrorCode, code: ErrorCode) -> None:
    world = World()
    assert world.commit_offset(fail=append_code) is code
    assert world.offset() == -1


def test_the_metadata_may_have_4096_bytes() -> None:
    world = World()
    assert world.commit_offset(1, metadata="x" * 4_096) is NONE
    assert world.commit_offset(2, metadata="x" * 4_097) is ErrorCode.offset_metadata_too_large
    assert world.commit_offset(2, metadata="é" * 2_049) is ErrorCode.offset_metadata_too_large
    assert world.offset() == 1


def test_each_partition_is_answered_for_itself() -> None:
    world = World()
    topics = (
        TopicCommit("t", (PartitionCommit(0, Offset(1)), PartitionCommit(1, Offset(2), metadata="x" * 5_000))),
        TopicCommit("t" * 250, (PartitionCommit(0, Offset(1)),)),
        TopicCommit("u", (PartitionCommit(-1, Offset(1)), PartitionCommit(2, Offset(8), LeaderEpoch(3), "m"))),
    )
    token = world.send_commit(topics=topics)
    assert [[error for _, error in topic.partitions] for topic in world.replies[token].topics] == [
        [NONE, ErrorCode.offset_metadata_too_large],
        [ErrorCode.unknown_topic_or_partition],
        [ErrorCode.unknown_topic_or_partition, NONE],
    ]
    assert world.records == [
        OffsetCommitted(group_id="g", topic="t", partition=0, offset=Offset(1), commit_timestamp_ms=world.wall_ms),
        OffsetCommitted(
            group_id="g",
            topic="u",
            partition=2,
            offset=Offset(8),
            leader_epoch=LeaderEpoch(3),
            metadata="m",
            commit_timestamp_ms=world.wall_ms,
        ),
    ]


def test_a_group_id_that_fits_no_record_is_invalid() -> None:
    assert World().commit_offset(group_id="g" * 40_000) is ErrorCode.invalid_group_id


def test_a_retention_beyond_all_time_is_for_ever() -> None:
    world = World()
    assert world.commit_offset(retention_ms=2**63 - 1) is NONE
    (record,) = world.records
    assert isinstance(record, OffsetCommitted)
    assert record.expire_timestamp_ms == 2**63 - 1


# What is read ---------------------------------------------------------------------------------------------------------


def fetch_all(world: World) -> tuple[FetchedTopic, ...]:
    (reply,) = world.shard.fetch_offsets(FetchOffsets(group_id="g", topics=None), 0).replies_on_commit
    topics: tuple[FetchedTopic, ...] = reply.response.topics  # type: ignore[attr-defined]
    return topics


def test_all_offsets_of_a_group_can_be_asked_for() -> None:
    world = World()
    world.commit_offset(1, topic="t", metadata="m")
    world.commit_offset(2, topic="u", partition=3)
    world.commit_offset(3, topic="u", partition=4, group_id="other")
    assert fetch_all(world) == (
        FetchedTopic("t", (FetchedOffset(0, Offset(1), metadata="m"),)),
        FetchedTopic("u", (FetchedOffset(3, Offset(2)),)),
    )


def test_a_group_that_is_not_there_has_no_offsets() -> None:
    world = World()
    assert world.offset() == -1
    assert fetch_all(world) == ()


def test_the_offset_of_a_topic_that_was_made_again_is_not_its_own() -> None:
    world = World()
    old, new = UUID(int=1), UUID(int=2)
    commit = TopicCommit("t", (PartitionCommit(0, Offset(5)),), old)
    world.run(world.shard.commit_offsets(CommitOffsets(group_id="g", topics=(commit,), version=10), 0, world.now))
    assert world.offset() == 5
    assert world.offset(topic_id=old) == 5
    assert world.offset(topic_id=new) == -1


def test_a_later_commit_takes_the_place_of_an_earlier_one_also_when_it_goes_back() -> None:
    world = World()
    world.commit_offset(9)
    world.commit_offset(4)
    assert world.offset() == 4
    world.restart()
    assert world.offset() == 4


# OffsetDelete ---------------------------------------------------------------------------------------------------------


def test_offsets_of_a_topic_that_is_subscribed_to_cannot_be_deleted() -> None:
    world = World()
    (leader,), generation = world.stable(1)
    world.commit_offset(1, topic="t", **of(leader, generation))
    world.commit_offset(2, topic="u", **of(leader, generation))
    assert world.delete_offsets("t") is ErrorCode.group_subscribed_to_topic
    assert world.delete_offsets("u") is NONE
    assert world.records == [OffsetDeleted(group_id="g", topic="u", partition=0)]
    assert (world.offset("t"), world.offset("u")) == (1, -1)


def test_offsets_cannot_be_deleted_when_the_subscription_cannot_be_read() -> None:
    world = World()
    world.stable(1, protocols=(Protocol("range", b"no subscription"),))
    assert world.delete_offsets("u") is ErrorCode.group_subscribed_to_topic


def test_topics_of_members_that_are_joining_count_as_subscribed() -> None:
    world = World()
    (leader,), generation = world.stable(1)
    world.commit_offset(2, topic="u", **of(leader, generation))
    world.enter(protocols=(Protocol("range", subscription("u")),))
    assert world.delete_offsets("u") is ErrorCode.group_subscribed_to_topic


def test_offsets_of_other_groups_with_members_cannot_be_deleted() -> None:
    world = World()
    world.stable(1, protocol_type="connect")
    assert world.delete_offsets() is ErrorCode.non_empty_group


def test_any_offset_of_an_empty_group_can_be_deleted() -> None:
    world = World()
    world.commit_offset(1)
    assert world.delete_offsets() is NONE
    assert world.delete_offsets(partition=7) is NONE
    assert world.records == []
    assert world.offset() == -1


def test_a_group_that_is_not_there_has_nothing_to_delete() -> None:
    assert World().delete_offsets() is ErrorCode.group_id_not_found


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    world = World()
    world.commit_offset(1, topic="t")
    world.commit_offset(2, topic="u")
    world.commit_offset(3, topic="t", group_id="h")
    world.run(world.shard.on_topics_deleted({"t", "v"}))
    assert (world.offset("t"), world.offset("u"), world.offset("t", group_id="h")) == (-1, 2, -1)
    world.restart()
    assert (world.offset("t"), world.offset("u"), world.offset("t", group_id="h")) == (-1, 2, -1)
