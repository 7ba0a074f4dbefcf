"""KIP-211: when committed offsets go."""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.decision import Now
from penstock.coordinator.group.records import GroupDeleted, GroupMetadata, OffsetDeleted

from .support import SESSION_MS, World, subscription

WEEK_MS = 7 * 24 * 3_600_000


def expire(world: World) -> None:
    world.run(world.shard.expire_offsets(world.now))


def test_offsets_go_when_the_group_has_been_empty_for_the_retention() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.commit_offset(5, member_id=member_id, generation_id=generation)
    world.advance(SESSION_MS - 1)
    world.leave(member_id)
    world.advance(WEEK_MS - 1)
    expire(world)
    assert world.offset() == 5
    world.advance(1)
    expire(world)
    assert world.records == [OffsetDeleted(group_id="g", topic="t", partition=0), GroupDeleted(group_id="g")]
    assert world.state() is None
    assert world.join(member_id).error_code is ErrorCode.unknown_member_id


def test_since_when_a_group_is_empty_outlives_the_coordinator() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.commit_offset(5, member_id=member_id, generation_id=generation)
    world.leave(member_id)
    world.advance(WEEK_MS - 1)
    world.restart()
    expire(world)
    assert world.offset() == 5
    world.advance(1)
    expire(world)
    assert world.offset() == -1


def test_offsets_of_topics_in_use_never_go() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    for topic in ("t", "u"):
        world.commit_offset(5, topic=topic, member_id=member_id, generation_id=generation)
    world.wall_ms += WEEK_MS
    expire(world)
    assert world.records == [OffsetDeleted(group_id="g", topic="u", partition=0)]
    assert world.state() == "Stable"


def test_nothing_goes_when_the_subscription_cannot_be_read() -> None:
    world = World()
    (member_id,), generation = world.stable(1, protocols=(Protocol("range", b""),))
    world.commit_offset(5, topic="u", member_id=member_id, generation_id=generation)
    world.wall_ms += WEEK_MS
    expire(world)
    assert world.records == []


def test_nothing_goes_during_a_rebalance() -> None:
    world = World()
    members, generation = world.stable(2, protocols=(Protocol("range", subscription("x")),))
    world.commit_offset(5, topic="u", member_id=members[0], generation_id=generation)
    world.send_join(members[0], protocols=(Protocol("range", subscription("x")),))
    world.wall_ms += WEEK_MS
    expire(world)
    assert world.records == []


def test_offsets_of_groups_without_members_go_by_their_commit() -> None:
    world = World()
    world.commit_offset(5, partition=0)
    world.advance(1)
    world.commit_offset(6, partition=1)
    world.advance(WEEK_MS - 1)
    expire(world)
    assert (world.offset(partition=0), world.offset(partition=1)) == (-1, 6)
    world.advance(1)
    expire(world)
    assert world.state() is None
    world.restart()
    assert world.shard.groups == {}


def test_a_retention_that_the_client_named_is_kept() -> None:
    world = World()
    world.commit_offset(5, partition=0, retention_ms=1_000, version=4)
    world.commit_offset(6, partition=1, retention_ms=3 * WEEK_MS, version=4)
    world.advance(1_000)
    expire(world)
    assert (world.offset(partition=0), world.offset(partition=1)) == (-1, 6)
    world.advance(2 * WEEK_MS)
    expire(world)
    assert world.offset(partition=1) == 6


def test_a_group_of_an_old_record_without_a_time_goes_by_its_commits() -> None:
    world = World()
    world.commit_offset(5)
    world.shard.apply(GroupMetadata(group_id="g", protocol_type="consumer", generation_id=3))
    world.shard.on_loaded(world.now)
    world.advance(WEEK_MS)
    expire(world)
    assert world.offset() == -1


def test_an_empty_group_without_offsets_goes_at_once() -> None:
    world = World()
    (member_id,), _ = world.stable(1)
    world.leave(member_id)
    expire(world)
    assert world.records == [GroupDeleted(group_id="g")]
    assert world.shard.groups == {}


def test_a_group_that_a_member_is_about_to_join_stays() -> None:
    world = World()
    world.join()
    expire(world)
    assert world.records == []


def test_a_clock_that_jumps_forward_removes_nothing_at_first() -> None:
    world = World()
    world.commit_offset(5)
    expire(world)
    world.run(world.shard.expire_offsets(Now(world.timer_ms + 600_000, world.wall_ms + WEEK_MS)))
    assert world.offset() == 5
    world.run(world.shard.expire_offsets(Now(world.timer_ms + 1_200_000, world.wall_ms + WEEK_MS + 600_000)))
    assert world.offset() == -1
