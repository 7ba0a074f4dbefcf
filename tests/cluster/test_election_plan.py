"""Elections that somebody asks for."""

from uuid import UUID

from images import after, broker, cluster

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_NODE, LeaderEpoch, NodeId, TopicPartition
from penstock.cluster.election_plan import ElectionType, needing_election, plan_elections
from penstock.cluster.image import ClusterImage, PartitionState, TopicImage
from penstock.cluster.plan import put_state
from penstock.cluster.topic_plan import _put_topic

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def state(number: int, replicas: list[int], isr: list[int], leader: int) -> PartitionState:
    members = tuple(map(NodeId, isr))
    nodes = tuple(map(NodeId, replicas))
    return PartitionState(number, nodes, members, NodeId(leader), LeaderEpoch(3), 8, isr_epochs=(1,) * len(isr))


def image_of(*states: PartitionState, brokers: tuple[int, ...] = (1, 2, 3)) -> ClusterImage:
    writes = [_put_topic(TopicImage("t", UUID(int=7), states)), *(put_state("t", item) for item in states)]
    return after(cluster(brokers), writes)


def partitions(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def test_preferred_leaders() -> None:
    image = image_of(
        state(0, [1, 2], [2, 1], 2), state(1, [1, 2], [1, 2], 1), state(2, [1, 2], [2], 2), state(3, [9, 2], [2, 9], 2)
    )
    assert needing_election(image, PREFERRED) == partitions(0, 2, 3)
    plan = plan_elections(image, PREFERRED, partitions(0, 1, 2, 3, 4, 0))
    assert [result.code for result in plan.results] == [
        ErrorCode.none,
        ErrorCode.election_not_needed,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.unknown_topic_or_partition,
    ]
    led = after(image, plan.writes).topics["t"].partitions
    assert [(item.leader, item.leader_epoch) for item in led] == [(1, 4), (1, 3), (2, 3), (2, 3)]


def test_a_preferred_leader_that_is_about_to_stop_is_not_available() -> None:
    image = after(image_of(state(0, [1, 2], [2, 1], 2)), [broker(1, is_stopping=True)])
    assert plan_elections(image, PREFERRED, partitions(0)).results[0].code is ErrorCode.preferred_leader_not_available


def test_unclean_elections_are_for_partitions_without_a_leader() -> None:
    image = image_of(
        state(0, [9, 2], [9], NO_NODE),
        state(1, [9, 2], [2], 2),
        state(2, [9, 8], [9], NO_NODE),
        state(3, [1, 2], [2], NO_NODE),
    )
    assert needing_election(image, UNCLEAN) == partitions(0, 2, 3)
    plan = plan_elections(image, UNCLEAN, partitions(0, 1, 2, 3))
    assert [result.code for result in plan.results] == [
        ErrorCode.none,
        ErrorCode.election_not_needed,
        ErrorCode.eligible_leaders_not_available,
        ErrorCode.none,
    ]
    assert [result.moved.is_unclean for result in plan.results if result.moved] == [True, False]
    assert [item.leader for item in after(image, plan.writes).topics["t"].partitions] == [2, 2, NO_NODE, 2]
