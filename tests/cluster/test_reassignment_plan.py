"""Partitions on their way to other brokers: they have the replicas of both ends, and never lose who is in sync."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import after, cluster

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_NODE, LeaderEpoch, NodeId, TopicPartition
from penstock.cluster.image import ClusterImage, PartitionState, TopicImage
from penstock.cluster.plan import put_state
from penstock.cluster.reassignment_plan import Reassign, completed, plan_reassign
from penstock.cluster.topic_plan import NewPartitions, _put_topic, plan_create_partitions

PARTITION = TopicPartition("t", 0)


def state(replicas: list[int], isr: list[int] | None = None, leader: int | None = None) -> PartitionState:
    members = tuple(map(NodeId, replicas if isr is None else isr))
    leads = members[0] if leader is None else NodeId(leader)
    epochs = (1,) * len(members)
    return PartitionState(0, tuple(map(NodeId, replicas)), members, leads, LeaderEpoch(3), 8, isr_epochs=epochs)


def image_of(item: PartitionState) -> ClusterImage:
    topic = TopicImage("t", UUID(int=7), (item,))
    return after(cluster([1, 2, 3, 4, 5]), [_put_topic(topic), put_state("t", item)])


def move(image: ClusterImage, replicas: list[int] | None, **options: bool) -> tuple[ClusterImage, ErrorCode]:
    plan = plan_reassign(image, [Reassign(PARTITION, replicas)], **options)
    return after(image, plan.writes), plan.results[0].code


def only(image: ClusterImage) -> PartitionState:
    return image.topics["t"].partitions[0]


def test_the_picture_in_the_module() -> None:
    image, code = move(image_of(state([1, 2, 3])), [3, 4])
    moving = only(image)
    assert code is ErrorCode.none
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 4, 1, 2), (4,), (1, 2))
    assert (moving.leader, moving.isr, moving.leader_epoch, moving.partition_epoch) == (1, (1, 2, 3), 3, 9)
    assert completed(moving) is moving
    done = completed(moving._replace(isr=(*moving.isr, NodeId(4)), isr_epochs=(1, 1, 1, 1)))
    assert (done.replicas, done.isr, done.adding, done.removing) == ((3, 4), (3, 4), (), ())
    assert (done.leader, done.leader_epoch, done.partition_epoch) == (3, 4, 10)


def test_a_leader_that_stays_keeps_its_epoch() -> None:
    image, _ = move(image_of(state([1, 2])), [2, 1, 3])
    done = completed(only(image)._replace(isr=tuple(map(NodeId, (1, 2, 3))), isr_epochs=(1, 1, 1)))
    assert (done.replicas, done.leader, done.leader_epoch) == ((2, 1, 3), 1, 3)


def test_a_move_that_is_stopped_goes_back() -> None:
    image, _ = move(image_of(state([1, 2])), [3, 4])
    image, code = move(image, None)
    back = only(image)
    assert code is ErrorCode.none
    assert (back.replicas, back.isr, back.adding, back.removing, back.leader) == ((1, 2), (1, 2), (), (), 1)
    assert move(image, None)[1] is ErrorCode.no_reassignment_in_progress


def test_a_move_that_is_stopped_takes_back_the_leadership() -> None:
    moving = state([3, 1], [1, 3], leader=3)._replace(adding=(NodeId(3),), removing=(NodeId(1),))
    image, code = move(image_of(moving), None)
    assert (only(image).leader, only(image).leader_epoch, only(image).isr, code) == (1, 4, (1,), 0)


def test_a_move_cannot_be_stopped_when_only_the_new_ones_have_everything() -> None:
    moving = state([3, 1], [3], leader=3)._replace(adding=(NodeId(3),), removing=(NodeId(1),))
    assert move(image_of(moving), None)[1] is ErrorCode.invalid_replica_assignment
    assert move(image_of(moving), [2, 1])[1] is ErrorCode.invalid_replica_assignment


def test_another_target_on_the_way_drops_who_is_no_longer_wanted() -> None:
    image, _ = move(image_of(state([1, 2])), [3, 4])
    image, _ = move(image, [4, 5])
    moving = only(image)
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 5, 1, 2), (4, 5), (1, 2))


def test_the_same_replicas_are_no_move_and_in_another_order_only_another_preference() -> None:
    image = image_of(state([1, 2]))
    assert plan_reassign(image, [Reassign(PARTITION, [1, 2])]).writes == []
    image, _ = move(image, [2, 1])
    assert (only(image).replicas, only(image).adding, only(image).leader) == ((2, 1), (), 1)


@pytest.mark.parametrize("replicas", [[], [1, 1], [9], [1, -1]])
def test_impossible_targets(replicas: list[int]) -> None:
    assert move(image_of(state([1, 2])), replicas)[1] is ErrorCode.invalid_replica_assignment


def test_partitions_that_are_not_there() -> None:
    commands = [Reassign(TopicPartition("t", 1), [1]), Reassign(TopicPartition("u", 0), None)]
    plan = plan_reassign(image_of(state([1, 2])), commands)
    assert [result.code for result in plan.results] == [ErrorCode.unknown_topic_or_partition] * 2


def test_the_number_of_replicas_can_be_kept() -> None:
    image = image_of(state([1, 2]))
    assert move(image, [1, 2, 3], allow_factor_change=False)[1] is ErrorCode.invalid_replication_factor
    assert move(image, [3, 4], allow_factor_change=False)[1] is ErrorCode.none
    assert move(image, [1, 2, 3])[1] is ErrorCode.none


def test_partitions_that_are_added_meanwhile_get_as_many_replicas_as_the_target_has() -> None:
    image, _ = move(image_of(state([1, 2])), [3, 4])
    plan = plan_create_partitions(image, [NewPartitions(name="t", total_count=2)])
    grown = after(image, plan.all_writes).topics["t"]
    assert len(grown.partitions[1].replicas) == 2
    assert grown.partitions[0].adding == (3, 4)


nodes = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True)


@given(nodes, st.data(), st.lists(st.one_of(st.none(), nodes), min_size=1, max_size=5))
def test_whatever_is_asked_for_somebody_in_sync_is_left(
    replicas: list[int], data: st.DataObject, targets: list[list[int] | None]
) -> None:
    isr = data.draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    leader = data.draw(st.sampled_from([*isr, NO_NODE]))
    image = image_of(state(replicas, isr, leader))
    for target in targets:
        before = only(image)
        image, code = move(image, target)
        moving = only(image)
        assert moving.isr
        assert set(moving.isr) <= set(moving.replicas)
        assert len(set(moving.replicas)) == len(moving.replicas)
        assert set(moving.adding) | set(moving.removing) <= set(moving.replicas)
        assert not set(moving.adding) & set(moving.removing)
        assert moving.leader == NO_NODE or moving.leader in moving.isr
        assert (moving.leader_epoch > before.leader_epoch) == (moving.leader != before.leader)
        if code is ErrorCode.none and target is not None:
            assert moving.replicas[: len(target)] == tuple(target)
        everybody = moving._replace(isr=moving.replicas, isr_epochs=(1,) * len(moving.replicas))
        done = completed(everybody)
        assert (done.adding, done.removing) == ((), ())
        assert done.replicas == tuple(node for node in moving.replicas if node not in moving.removing)
        assert completed(done) is done
