"""Consumer groups in a shard: listed, described, deleted, expired, loaded from any part of their log."""

from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import FetchOffsets, TopicPartitions
from penstock.coordinator.group.consumer.records import ConsumerGroupCurrentMemberAssignment
from penstock.coordinator.group.decision import Decision
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.member_budget import MEMBER_BYTES

from ..support import GROUP
from .invariants import assert_books_are_right, assert_target_is_whole
from .support import SESSION_MS, ConsumerWorld, T

RETENTION_MS = 7 * 24 * 3_600_000
DAY_MS = 24 * 3_600_000


def committed_by(world: ConsumerWorld, member_id: str, offset: int = 5, **fields: Any) -> ErrorCode:
    epoch = world.group.members[member_id].epoch
    return world.commit_offset(offset, member_id=member_id, generation_id=epoch, version=9, **fields)


def expire(world: ConsumerWorld, delay_ms: int) -> None:
    """A day at a time: a clock that jumps further is not believed at once."""
    for _ in range(delay_ms // DAY_MS):
        world.advance(DAY_MS)
        world.run(world.shard.expire_offsets(world.now))


def live_on(world: ConsumerWorld, member_id: str, *, days: int) -> None:
    for _ in range(days):
        world.wall_ms += DAY_MS
        world.timer_ms += DAY_MS
        world.beat(member_id, world.group.members[member_id].epoch)
        world.run(world.shard.expire_offsets(world.now))


def test_groups_are_listed_with_their_type() -> None:
    world = ConsumerWorld()
    world.enter_new("n")
    world.send_join(group_id="classic", version=3)
    world.commit_offset(1, group_id="simple")
    listed = {one.group_id: (one.group_type, one.state) for one in world.shard.list_groups()}
    assert listed == {
        GROUP: ("consumer", "Stable"),
        "classic": ("classic", "PreparingRebalance"),
        "simple": ("classic", "Empty"),
    }


def test_a_group_is_described_by_the_api_of_its_kind() -> None:
    world = ConsumerWorld()
    world.enter_new("n", topic_regex="u")
    assert world.shard.describe(GROUP) is None
    view = world.shard.describe_consumer(GROUP)
    assert view is not None and (view.epoch, view.target_epoch, view.assignor) == (1, 1, "uniform")
    (member,) = view.members
    assert member.assigned == member.target == world.assigned("n")
    assert (member.metadata.topic_names, member.metadata.topic_regex) == (("t",), "u")
    assert world.shard.describe_consumer("other") is None


def test_only_an_empty_group_is_deleted_with_all_it_has() -> None:
    world = ConsumerWorld()
    world.enter_new("n", topic_regex="u")
    committed_by(world, "n")
    assert world.delete_group() is ErrorCode.non_empty_group
    world.beat("n", -1)
    assert world.delete_group() is ErrorCode.none
    assert world.consumer_state() is None and world.state() is None and world.offset() == -1
    world.restart()
    assert not world.shard.consumers.groups and not world.shard.groups
    assert world.shard.budget.bytes_used == 0


def test_offsets_of_topics_in_use_are_not_deleted() -> None:
    world = ConsumerWorld()
    world.enter_new("n", "t")
    committed_by(world, "n")
    committed_by(world, "n", topic="u")
    assert world.delete_offsets("t") is ErrorCode.group_subscribed_to_topic
    assert world.delete_offsets("u") is ErrorCode.none
    assert (world.offset("t"), world.offset("u")) == (5, -1)


def test_members_fetch_with_their_epoch_and_tools_without() -> None:
    world = ConsumerWorld()
    world.enter_new("n")
    committed_by(world, "n")

    def fetched(**fields: Any) -> ErrorCode:
        token = world.new_token()
        command = FetchOffsets(group_id=GROUP, topics=(TopicPartitions("t", (0,)),), **fields)
        world.run(world.shard.fetch_offsets(command, token))
        code: ErrorCode = world.replies[token].error_code
        return code

    assert fetched() is ErrorCode.none
    assert fetched(member_id="n", member_epoch=1) is ErrorCode.none
    assert fetched(member_id="n", member_epoch=0) is ErrorCode.stale_member_epoch
    assert fetched(member_id="x", member_epoch=1) is ErrorCode.unknown_member_id


def test_offsets_expire_when_the_group_was_empty_for_the_retention() -> None:
    world = ConsumerWorld()
    world.enter_new("n")
    committed_by(world, "n")
    live_on(world, "n", days=9)  # For longer than the retention, and commits nothing.
    assert world.offset() == 5
    world.beat("n", -1)
    expire(world, RETENTION_MS)
    assert world.offset() == 5
    expire(world, DAY_MS)
    assert world.offset() == -1
    assert world.consumer_state() is None and world.state() is None, "nothing is left of it"


def test_offsets_of_topics_that_nobody_reads_any_more_expire() -> None:
    world = ConsumerWorld()
    world.enter_new("n", "t", "u")
    committed_by(world, "n", topic="u")
    committed_by(world, "n")
    world.beat("n", 1, topic_names=("t",))
    world.settle()
    live_on(world, "n", days=8)
    assert (world.offset("t"), world.offset("u")) == (5, -1)


def test_members_share_the_memory_of_all_groups() -> None:
    world = ConsumerWorld(GroupConfig(members_bytes_max=4 * MEMBER_BYTES))
    assert world.enter_new("a").error_code is ErrorCode.none
    refused = world.enter_new("b", group_id="other")
    assert refused.error_code is ErrorCode.group_max_size_reached
    world.beat("a", -1)
    assert world.enter_new("b", group_id="other").error_code is ErrorCode.none
    world.run(world.shard.unload())
    assert world.shard.budget.bytes_used == 0


def story() -> ConsumerWorld:
    world = ConsumerWorld()
    for member_id in "abc":
        world.enter_new(member_id, topic_regex="[u]" if member_id == "b" else None)
    world.settle()
    world.enter_new("s", instance_id="i")
    world.settle()
    world.beat("s", -2, instance_id="i")
    world.enter_new("s2", instance_id="i")
    world.beat("a", -1)
    world.set_topic("t", 8)
    world.settle()
    return world


@pytest.mark.parametrize("part", range(4))
def test_a_group_recovers_from_a_log_that_ends_anywhere(part: int) -> None:
    """A decision that takes several batches can be torn: members find their way, and the target is made whole."""
    whole = story()
    for end in range(1 + part, len(whole.log) + 1, 4):
        world = ConsumerWorld()
        world.set_topic("t", 8)
        world.log = whole.log[:end]
        world.restart()
        for member_id in ("b", "c"):
            assert world.enter_new(member_id).error_code is ErrorCode.none
        world.settle("b", "c")
        for _ in range(SESSION_MS // 5_000 + 1):
            world.advance(5_000)
            world.settle("b", "c")
        assert sorted(world.group.members) == ["b", "c"]
        assert_books_are_right(world.group)
        assert_target_is_whole(world.group, world.topics)
        assert world.numbers("b") | world.numbers("c") == set(range(8))


def test_a_member_without_its_metadata_is_none() -> None:
    """Compaction may have kept what it had, and not who it was."""
    world = ConsumerWorld()
    world.enter_new("a")
    world.run(Decision([ConsumerGroupCurrentMemberAssignment(group_id=GROUP, member_id="ghost", epoch=1)]))
    world.restart()
    assert list(world.group.members) == ["a"]
    assert world.shard.budget.bytes_used == world.group.members["a"].held_bytes
    assert world.numbers("a", T) == set(range(6))
