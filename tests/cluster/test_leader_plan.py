"""What a controller puts in order by itself, and how little it looks at when there is nothing to do."""

from uuid import UUID

from images import after, broker, cluster

from penstock.base.config import BrokerConfig
from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_NODE, LeaderEpoch, NodeId, TopicPartition
from penstock.cluster import records
from penstock.cluster.image import ClusterImage, PartitionState, TopicImage
from penstock.cluster.leader_plan import due_partitions, may_be_due, plan_partitions, plan_tidying
from penstock.cluster.plan import put_state
from penstock.cluster.store.base import Check, Delete, Put, Write
from penstock.cluster.topic_plan import _put_topic

CONFIG = BrokerConfig()
ID = UUID(int=7)


def state(partition: int, replicas: list[int], isr: list[int], leader: int) -> PartitionState:
    nodes = tuple(map(NodeId, replicas)), tuple(map(NodeId, isr))
    return PartitionState(partition, *nodes, NodeId(leader), LeaderEpoch(3), 8, isr_epochs=(1,) * len(isr))


def topic(*states: PartitionState, name: str = "t", topic_id: UUID = ID, **config: str) -> list[Write]:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    writes: list[Write] = [_put_topic(TopicImage(name, topic_id, states)), *(put_state(name, item) for item in states)]
    return writes + ([Put(records.topic_config_key(name), records.encode(settings))] if settings else [])


def put_in_order(image: ClusterImage, config: BrokerConfig = CONFIG) -> ClusterImage:
    due = due_partitions(image, config)
    plan = plan_partitions(image, config, due)
    assert [moved.partition for moved in plan.results] == due
    image = after(image, plan.writes)
    assert due_partitions(image, config) == []
    return image


def test_partitions_of_a_broker_that_is_gone_get_other_leaders() -> None:
    image = after(
        cluster([1, 2, 3]), topic(state(0, [1, 2], [1, 2], 1), state(1, [2, 1], [2, 1], 2), state(2, [3], [3], 3))
    )
    assert due_partitions(image, CONFIG) == []
    image = after(image, [Delete(records.broker_key(NodeId(2)))])
    assert due_partitions(image, CONFIG) == [TopicPartition("t", 0), TopicPartition("t", 1)]
    image = put_in_order(image)
    assert [(item.leader, item.isr, item.leader_epoch) for item in image.topics["t"].partitions] == [
        (1, (1,), 3),
        (1, (1,), 4),
        (3, (3,), 3),
    ]


def test_a_plan_is_written_only_over_the_states_that_it_was_made_from() -> None:
    image = after(cluster([1]), topic(state(0, [1, 2], [1, 2], 2)))
    plan = plan_partitions(image, CONFIG, due_partitions(image, CONFIG))
    assert plan.checks == [Check(records.partition_state_key("t", 0), image.topics["t"].partitions[0].version)]


def test_what_is_no_longer_due_is_passed_over() -> None:
    image = after(cluster([1, 2]), topic(state(0, [1, 2], [1, 2], 2)))
    assert plan_partitions(image, CONFIG, [TopicPartition("t", 0), TopicPartition("gone", 1)]).writes == []


def test_unclean_elections_are_held_where_the_topic_or_the_broker_says_so() -> None:
    image = after(
        cluster([2]),
        [
            *topic(state(0, [1, 2], [1], 1), name="safe"),
            *topic(state(0, [1, 2], [1], 1), name="loose", topic_id=UUID(int=8), unclean_leader_election_enable="true"),
            *topic(
                state(0, [1, 2], [1], 1), name="strict", topic_id=UUID(int=9), unclean_leader_election_enable="false"
            ),
            # Stored by a version that knew more.
            *topic(state(0, [1, 2], [1], 1), name="new", topic_id=UUID(int=10), unclean_leader_election_enable="last"),
        ],
    )
    plan = plan_partitions(image, CONFIG, due_partitions(image, CONFIG))
    assert {moved.partition.topic: (moved.after.leader, moved.is_unclean) for moved in plan.results} == {
        "safe": (NO_NODE, False),
        "loose": (2, True),
        "strict": (NO_NODE, False),
        "new": (NO_NODE, False),
    }
    loose = BrokerConfig(topic_defaults=TopicConfig(unclean_leader_election_enable=True))
    plan = plan_partitions(image, loose, due_partitions(image, loose))
    assert {moved.partition.topic for moved in plan.results if moved.is_unclean} == {"safe", "loose", "new"}


def test_a_topic_whose_state_is_missing_is_left_alone() -> None:
    image = after(cluster([1]), topic(state(0, [1], [1], 1))[:1])
    assert due_partitions(image, CONFIG) == []


def test_litter_of_topics_that_are_gone_is_deleted() -> None:
    image = after(cluster([1]), topic(state(0, [1], [1], 1), state(1, [1], [1], 1)))
    image = after(image, [Delete(records.topic_key("t"))])
    plan = plan_tidying(image)
    assert [write.key for write in plan.writes] == [records.partition_state_key("t", number) for number in (0, 1)]
    assert plan.checks == [Check(records.topic_key("t"), 0)]  # A topic whose last commit has just arrived stays.
    assert after(image, plan.writes).unplaced == {}


def test_only_what_matters_makes_the_controller_look() -> None:
    image = after(cluster([1, 2]), topic(state(0, [1, 2], [1, 2], 1), state(1, [2], [2], 2)))
    assert not may_be_due(image, after(image, [Put(records.topic_config_key("t"), b"{}")]))
    assert not may_be_due(image, after(image, [put_state("t", state(0, [1, 2], [1], 1))]))
    assert not may_be_due(image, after(image, topic(state(0, [1], [1], 1), name="new", topic_id=UUID(int=8))))
    assert not may_be_due(image, after(image, [Delete(records.topic_key("t")), *plan_all_states(image)]))
    assert may_be_due(image, after(image, [Delete(records.topic_key("t"))]))
    assert may_be_due(image, after(image, [Delete(records.broker_key(NodeId(2)))]))
    assert may_be_due(image, after(image, [Put(records.CONTROLLER, records.encode({"node": 2}))]))
    assert may_be_due(image, after(image, [Put(records.broker_config_key("1"), b"{}")]))
    assert may_be_due(image, after(image, [put_state("t", state(0, [1, 2], [1, 2], NO_NODE))]))


def plan_all_states(image: ClusterImage) -> list[Write]:
    return [Delete(records.partition_state_key("t", item.partition)) for item in image.topics["t"].partitions]


def test_a_topic_without_a_leader_is_looked_at_when_its_settings_change() -> None:
    image = put_in_order(after(cluster([2]), topic(state(0, [1, 2], [1], 1))))
    changed = after(image, [Put(records.topic_config_key("t"), b'{"unclean.leader.election.enable":"true"}')])
    assert may_be_due(image, changed)
    assert put_in_order(changed).topics["t"].partitions[0].leader == 2


def test_a_follower_that_catches_up_relieves_a_leader_that_is_about_to_stop() -> None:
    image = after(cluster([1, 2]), topic(state(0, [1, 2], [1], 1)))
    image = after(image, [broker(1, is_stopping=True)])
    assert due_partitions(image, CONFIG) == []
    caught_up = after(image, [put_state("t", state(0, [1, 2], [1, 2], 1))])
    assert may_be_due(image, caught_up)
    assert put_in_order(caught_up).topics["t"].partitions[0].leader == 2
