"""Leaders that ask for other in-sync replicas: what they get, and what they are refused with, as Kafka would."""

from uuid import UUID

import pytest
from images import after, broker, cluster

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import LeaderEpoch, NodeId
from penstock.cluster.alter_partition_plan import AlterPartition, plan_alter_partitions
from penstock.cluster.image import ClusterImage, PartitionState, TopicImage
from penstock.cluster.plan import put_state
from penstock.cluster.topic_plan import _put_topic

ID = UUID(int=7)
ONE, TWO, THREE, FOUR = map(NodeId, (1, 2, 3, 4))
STATE = PartitionState(0, (ONE, TWO, THREE), (ONE, TWO), ONE, LeaderEpoch(3), 8, isr_epochs=(1, 1))


def image_of(state: PartitionState = STATE) -> ClusterImage:
    return after(cluster([1, 2, 3, 4]), [_put_topic(TopicImage("t", ID, (state,))), put_state("t", state)])


def change(*isr: int, leader_epoch: int = 3, partition_epoch: int = 8, epoch: int = 1, **more: bool) -> AlterPartition:
    members = [(NodeId(node), epoch) for node in isr]
    return AlterPartition(ID, 0, LeaderEpoch(leader_epoch), partition_epoch, members, **more)


def test_the_in_sync_replicas_are_changed_and_the_state_is_answered() -> None:
    image = image_of()
    plan = plan_alter_partitions(image, ONE, 1, [change(1, 2, 3)])
    state = plan.results[0].state
    assert state is not None
    assert (state.isr, state.isr_epochs, state.leader_epoch, state.partition_epoch) == ((1, 2, 3), (1, 1, 1), 3, 9)
    assert after(image, plan.writes).topics["t"].partitions[0][:6] == state[:6]
    assert plan.checks[0].version == image.topics["t"].partitions[0].version


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (change(1, 2)._replace(topic_id=UUID(int=8)), ErrorCode.unknown_topic_id),
        (change(1, 2)._replace(partition=1), ErrorCode.unknown_topic_or_partition),
        (change(1, 2)._replace(partition=-1), ErrorCode.unknown_topic_or_partition),
        (change(1, 2, leader_epoch=4), ErrorCode.not_controller),
        (change(1, 2, partition_epoch=9), ErrorCode.not_controller),
        (change(1, 2, leader_epoch=2), ErrorCode.fenced_leader_epoch),
        (change(1, 2, partition_epoch=7), ErrorCode.invalid_update_version),
        (change(1, 4), ErrorCode.invalid_request),
        (change(1, 1), ErrorCode.invalid_request),
        (change(2, 3), ErrorCode.invalid_request),
        (change(), ErrorCode.invalid_request),
        (change(1, 2, epoch=2), ErrorCode.ineligible_replica),
        (change(1, is_recovering=True), ErrorCode.invalid_request),
    ],
)
def test_refusals(asked: AlterPartition, code: ErrorCode) -> None:
    plan = plan_alter_partitions(image_of(), ONE, 1, [asked])
    assert (plan.results[0].code, plan.writes, plan.results[0].state) == (code, [], None)


def test_only_the_leader_may_ask() -> None:
    assert plan_alter_partitions(image_of(), TWO, 1, [change(1, 2)]).results[0].code is ErrorCode.invalid_request


def test_a_leader_that_registered_anew_is_not_yet_the_leader() -> None:
    image = image_of(STATE._replace(isr_epochs=(0, 1)))
    assert plan_alter_partitions(image, ONE, 1, [change(1, 2)]).results[0].code is ErrorCode.invalid_request


@pytest.mark.parametrize(("sender", "epoch"), [(1, 0), (1, 2), (1, -1), (9, 1)])
def test_a_sender_of_another_epoch_is_refused_as_a_whole(sender: int, epoch: int) -> None:
    with pytest.raises(Refused) as refused:
        plan_alter_partitions(image_of(), NodeId(sender), epoch, [change(1, 2)])
    assert refused.value.code is ErrorCode.stale_broker_epoch


def test_rule_5_who_stops_or_is_gone_does_not_come_into_sync_but_a_leader_that_stops_may_gain_a_follower() -> None:
    image = after(image_of(), [broker(2, is_stopping=True)])
    assert plan_alter_partitions(image, ONE, 1, [change(1, 2)]).results[0].code is ErrorCode.ineligible_replica
    image = after(image_of(), [broker(1, is_stopping=True)])
    assert plan_alter_partitions(image, ONE, 1, [change(1, 2, 3)]).results[0].code is ErrorCode.none
    state = STATE._replace(replicas=(ONE, TWO, NodeId(9)))
    assert (
        plan_alter_partitions(image_of(state), ONE, 1, [change(1, 9)]).results[0].code is ErrorCode.ineligible_replica
    )


def test_an_epoch_that_is_not_known_is_not_compared() -> None:
    assert plan_alter_partitions(image_of(), ONE, 1, [change(1, 3, epoch=-1)]).results[0].code is ErrorCode.none


def test_of_two_changes_of_one_partition_the_second_comes_too_late() -> None:
    plan = plan_alter_partitions(image_of(), ONE, 1, [change(1), change(1, 2, 3)])
    assert [result.code for result in plan.results] == [ErrorCode.none, ErrorCode.invalid_update_version]
    assert len(plan.writes) == 1


def test_an_unclean_leader_says_when_it_has_the_partition_in_order() -> None:
    state = STATE._replace(isr=(ONE,), isr_epochs=(1,), is_recovering=True)
    plan = plan_alter_partitions(image_of(state), ONE, 1, [change(1, is_recovering=True)])
    assert plan.results[0].state is not None
    assert plan.results[0].state.is_recovering
    plan = plan_alter_partitions(image_of(state), ONE, 1, [change(1, 2, is_recovering=True)])
    assert plan.results[0].code is ErrorCode.invalid_request
    plan = plan_alter_partitions(image_of(state), ONE, 1, [change(1, 2)])
    assert plan.results[0].state is not None
    assert not plan.results[0].state.is_recovering
