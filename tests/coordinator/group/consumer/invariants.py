"""What must hold of a consumer group at any moment."""

from uuid import UUID

from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.topics import Topics

from ..support import GROUP, World, decode_pair


def assert_books_are_right(group: ConsumerGroup) -> None:
    assert group.epoch >= group.target_epoch
    owners: dict[tuple[UUID, int], str] = {}
    for member_id, member in group.members.items():
        assert member.metadata.member_id == member.current.member_id == member_id
        assert member.epoch <= group.target_epoch
        for assignment in (member.current.assigned, member.current.to_revoke):
            for topic_id, partitions in assignment.items():
                assert partitions
                for partition in partitions:
                    assert owners.setdefault((topic_id, partition), member_id) == member_id, "two owners"
    assert owners == {(topic, number): who for topic, found in group.owners.items() for number, who in found.items()}
    assert group.static_ids == {
        one.instance_id: one.member_id for one in group.members.values() if one.instance_id is not None
    }
    assert group.classic_count == sum(one.is_classic for one in group.members.values())
    assert set(group.topic_counts) == {name for one in group.members.values() for name in one.metadata.topic_names}


def assert_target_is_whole(group: ConsumerGroup, topics: Topics) -> None:
    """Nobody shall have what another shall have; if the target is of this epoch, all partitions are in it, evenly."""
    seen: set[tuple[UUID, int]] = set()
    for target in group.targets.values():
        for topic_id, partitions in target.items():
            for partition in partitions:
                assert (topic_id, partition) not in seen, "twice in the target"
                seen.add((topic_id, partition))
    if group.members and group.is_up_to_date:
        found = [topics.find(name) for name in group.subscribed_names()]
        there = {(topic.topic_id, number) for topic in found if topic for number in range(topic.partition_count)}
        assert seen == there
        if len({group.names_of(one) for one in group.members.values()}) == 1:
            sizes = [sum(map(len, group.target(member_id).values())) for member_id in group.members]
            assert max(sizes) - min(sizes) <= 1, "not balanced"


def assert_log_says_what_the_shard_knows(world: World) -> None:
    replayed = world.new_shard()
    replayed.load([record for record in map(decode_pair, world.log) if record], world.now)
    group, again = world.shard.consumers.get(GROUP), replayed.consumers.get(GROUP)
    assert (group is None) == (again is None)
    if group is not None and again is not None:
        assert state_of(group) == state_of(again)
    assert world.shard.offsets.of_group(GROUP) == replayed.offsets.of_group(GROUP)


def state_of(group: ConsumerGroup) -> dict[str, object]:
    soft = {"changed_topics", "empty_since_ms", "assigned_ms", "classic_protocols"}
    return {name: value for name, value in vars(group).items() if name not in soft}
