"""Members of all groups together take no more memory than they may, and give back what they took."""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.member_budget import MEMBER_BYTES

from .support import SESSION_MS, World

LARGE = (Protocol("range", bytes(10_000)),)
ONE = MEMBER_BYTES + len("range") + 10_000


def world_for(count: int) -> World:
    return World(GroupConfig(members_bytes_max=count * ONE, initial_rebalance_delay_ms=0))


def used(world: World) -> int:
    return world.shard.budget.bytes_used


def test_the_one_too_many_is_refused_whatever_its_group() -> None:
    world = world_for(2)
    for number in range(2):
        world.send_join(instance_id="i", group_id=f"g{number}", protocols=LARGE)
    assert used(world) == 2 * ONE
    refused = world.join(instance_id="i", group_id="g2", protocols=LARGE)
    assert refused.error_code is ErrorCode.group_max_size_reached
    assert "g2" not in world.shard.groups
    again = world.join(instance_id="i", group_id="g1", protocols=LARGE)  # Its seat is paid for.
    assert again.error_code is ErrorCode.none


def test_who_goes_makes_room() -> None:
    world = world_for(1)
    joined = world.join(instance_id="i", protocols=LARGE)
    world.leave(joined.member_id)
    assert used(world) == 0
    joined = world.join(instance_id="i", protocols=LARGE)
    assert joined.error_code is ErrorCode.none
    world.advance(SESSION_MS)
    assert used(world) == 0


def test_an_assignment_counts_and_one_that_is_too_large_is_refused() -> None:
    world = world_for(2)
    joined = world.join(instance_id="i", protocols=LARGE)
    member_id, generation = joined.member_id, joined.generation_id
    refused = world.sync(member_id, generation, {member_id: bytes(ONE + 1)}, instance_id="i")
    assert refused.error_code is ErrorCode.group_max_size_reached
    synced = world.sync(member_id, generation, {member_id: bytes(ONE)}, instance_id="i")
    assert synced.error_code is ErrorCode.none
    assert used(world) == 2 * ONE
    world.leave(member_id)
    assert used(world) == 0


def test_groups_that_are_loaded_count_and_those_that_move_away_do_not() -> None:
    world = world_for(1)
    joined = world.join(instance_id="i", protocols=LARGE)
    world.sync(joined.member_id, joined.generation_id, {}, instance_id="i")
    before = used(world)
    world.restart()
    assert used(world) == before
    world.shard.unload()
    assert used(world) == 0
