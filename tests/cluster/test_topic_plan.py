"""Decisions about topics: image and commands in, writes and answers out."""

from collections.abc import Callable, Sequence
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import after, broker, cluster

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.types import NodeId
from penstock.cluster import records
from penstock.cluster.image import ClusterImage
from penstock.cluster.plan import Plan
from penstock.cluster.store.base import Check, Delete, Put
from penstock.cluster.topic_plan import (
    PARTITIONS_MAX,
    DeleteTopic,
    NewPartitions,
    NewTopic,
    TopicResult,
    plan_create_partitions,
    plan_create_topics,
    plan_delete_topics,
)

CONFIG = BrokerConfig()


def ids() -> Callable[[], UUID]:
    numbers = count(1)
    return lambda: UUID(int=next(numbers))


def create(image: ClusterImage, *topics: NewTopic, config: BrokerConfig = CONFIG) -> Plan[TopicResult]:
    return plan_create_topics(image, topics, config, ids())


def codes(plan: Plan[TopicResult]) -> list[ErrorCode]:
    return [result.code for result in plan.results]


def refused(plan: Plan[TopicResult]) -> ErrorCode:
    assert (plan.checks, plan.all_writes) == ([], [])
    assert plan.results[0].message
    return plan.results[0].code


def with_topic(name: str = "t", partitions: int = 2, brokers: Sequence[int] = (1,)) -> ClusterImage:
    image = cluster(brokers)
    return after(image, create(image, NewTopic(name=name, partition_count=partitions)).all_writes)


def test_a_topic_is_written_with_its_states_and_settings_in_one_commit() -> None:
    plan = create(cluster(), NewTopic(name="t", partition_count=2, config={"retention.ms": "5"}))
    state = b'{"isr":[1],"isr_epochs":[1],"leader":1,"leader_epoch":0,"partition_epoch":0,"replicas":[1]}'
    assert plan.checks == [Check("/brokers/topics/t", 0)]
    assert plan.all_writes == [
        Put("/brokers/topics/t/partitions/0/state", state),
        Put("/brokers/topics/t/partitions/1/state", state),
        Put("/brokers/topics/t", b'{"id":"00000000-0000-0000-0000-000000000001","replicas":[[1],[1]]}'),
        Put("/config/topics/t", b'{"retention.ms":"5"}'),
    ]
    topic = after(cluster(), plan.all_writes).topics["t"]
    answered = plan.results[0].topic
    assert answered is not None
    assert (topic.name, topic.topic_id, topic.config) == (answered.name, answered.topic_id, answered.config)
    assert [partition[:6] for partition in topic.partitions] == [partition[:6] for partition in answered.partitions]


def test_minus_one_stands_for_the_brokers_defaults() -> None:
    config = BrokerConfig(num_partitions=3, default_replication_factor=2)
    plan = create(cluster([1, 2]), NewTopic(name="t"), config=config)
    topic = plan.results[0].topic
    assert topic is not None
    assert (len(topic.partitions), topic.replication_factor) == (3, 2)


def test_defaults_changed_at_run_time_count() -> None:
    image = after(cluster(), [Put(records.broker_config_key("1"), records.encode({"num.partitions": "4"}))])
    topic = create(image, NewTopic(name="t")).results[0].topic
    assert topic is not None
    assert len(topic.partitions) == 4


def test_topics_of_one_partition_are_led_by_different_brokers() -> None:
    image = cluster([1, 2, 3])
    plan = create(image, *(NewTopic(name=f"t{number}") for number in range(3)))
    assert [result.topic.partitions[0].leader for result in plan.results if result.topic] == [1, 2, 3]


@pytest.mark.parametrize("name", ["", ".", "..", "../../etc/x", "a/b", "a\0b", "x" * 250, "é"])
def test_illegal_name(name: str) -> None:
    assert refused(create(cluster(), NewTopic(name=name))) == ErrorCode.invalid_topic_exception


def test_existing_topic() -> None:
    assert refused(create(with_topic("t"), NewTopic(name="t"))) == ErrorCode.topic_already_exists


def test_colliding_names() -> None:
    assert refused(create(with_topic("a.b"), NewTopic(name="a_b"))) == ErrorCode.invalid_topic_exception
    plan = create(cluster(), NewTopic(name="a.b"), NewTopic(name="a_b"))
    assert codes(plan) == [ErrorCode.none, ErrorCode.invalid_topic_exception]


@pytest.mark.parametrize("partitions", [0, -2, PARTITIONS_MAX + 1, 2**31 - 1, -(2**31)])
def test_impossible_numbers_of_partitions(partitions: int) -> None:
    plan = create(cluster(), NewTopic(name="t", partition_count=partitions))
    assert refused(plan) == ErrorCode.invalid_partitions


def test_partitions_of_one_request_are_bounded_together() -> None:
    half = PARTITIONS_MAX // 2
    topics = [NewTopic(name=f"t{number}", partition_count=half) for number in range(3)]
    assert codes(create(cluster(), *topics)) == [ErrorCode.none, ErrorCode.none, ErrorCode.invalid_partitions]


@pytest.mark.parametrize("factor", [0, 2, 99, -2, 32767])
def test_impossible_replication_factors(factor: int) -> None:
    plan = create(cluster(), NewTopic(name="t", replication_factor=factor))
    assert refused(plan) == ErrorCode.invalid_replication_factor


def test_assignment_is_taken_as_it_is() -> None:
    plan = create(cluster([1, 2, 3]), NewTopic(name="t", assignment=[(1, [2, 3]), (0, [3, 1])]))
    topic = plan.results[0].topic
    assert topic is not None
    assert [(state.replicas, state.isr, state.leader) for state in topic.partitions] == [
        ((3, 1), (3, 1), 3),
        ((2, 3), (2, 3), 2),
    ]


@pytest.mark.parametrize(
    "assignment",
    [
        [(0, [1, 1])],
        [(0, [9])],
        [(0, [])],
        [(1, [1])],
        [(0, [1]), (0, [2])],
        [(-1, [1])],
        [(0, [1]), (1, [1, 2])],
        [(0, [1]), (2, [1])],
    ],
)
def test_impossible_assignments(assignment: list[tuple[int, list[int]]]) -> None:
    plan = create(cluster([1, 2]), NewTopic(name="t", assignment=assignment))
    assert refused(plan) == ErrorCode.invalid_replica_assignment


def test_assignment_and_counts_exclude_each_other() -> None:
    plan = create(cluster(), NewTopic(name="t", partition_count=1, assignment=[(0, [1])]))
    assert refused(plan) == ErrorCode.invalid_request


@pytest.mark.parametrize(
    "config",
    [{"no.such": "1"}, {"retention.ms": "-2"}, {"retention.ms": None}, {"retention.ms": "${file:/etc/passwd}"}],
)
def test_impossible_settings(config: dict[str, str | None]) -> None:
    assert refused(create(cluster(), NewTopic(name="t", config=config))) == ErrorCode.invalid_config


def test_a_name_twice_in_one_request_is_refused_once_and_made_never() -> None:
    plan = create(cluster(), NewTopic(name="t"), NewTopic(name="u"), NewTopic(name="t", partition_count=3))
    assert [(result.name, result.code) for result in plan.results] == [
        ("t", ErrorCode.invalid_request),
        ("u", ErrorCode.none),
    ]


def test_delete_removes_every_key_of_the_topic() -> None:
    image = cluster()
    writes = create(image, NewTopic(name="t", partition_count=3, config={"retention.ms": "5"})).all_writes
    image = after(image, writes)
    plan = plan_delete_topics(image, [DeleteTopic("t")])
    assert plan.checks == [Check("/brokers/topics/t", image.topics["t"].version)]
    assert {write.key for write in plan.all_writes} == {write.key for write in writes}
    assert all(isinstance(write, Delete) for write in plan.all_writes)
    gone = after(image, plan.all_writes)
    assert (gone.topics, gone.unplaced) == ({}, {})


def test_delete_by_id() -> None:
    image = with_topic("t")
    topic_id = image.topics["t"].topic_id
    plan = plan_delete_topics(image, [DeleteTopic(None, topic_id), DeleteTopic(None, UUID(int=99))])
    assert [(result.name, result.code) for result in plan.results] == [
        ("t", ErrorCode.none),
        (None, ErrorCode.unknown_topic_id),
    ]


def test_delete_of_what_is_not_there_and_of_what_cannot_be() -> None:
    plan = plan_delete_topics(cluster(), [DeleteTopic("u"), DeleteTopic("../x")])
    assert codes(plan) == [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception]


def test_delete_twice_in_one_request() -> None:
    image = with_topic("t")
    plan = plan_delete_topics(image, [DeleteTopic("t"), DeleteTopic(None, image.topics["t"].topic_id)])
    assert codes(plan) == [ErrorCode.invalid_request, ErrorCode.invalid_request]
    assert plan.writes == []


def test_added_partitions_are_written_and_the_others_left_alone() -> None:
    image = with_topic("t", 2)
    plan = plan_create_partitions(image, [NewPartitions(name="t", total_count=4)])
    assert [write.key for write in plan.all_writes] == [
        "/brokers/topics/t/partitions/2/state",
        "/brokers/topics/t/partitions/3/state",
        "/brokers/topics/t",
    ]
    grown = after(image, plan.all_writes).topics["t"]
    assert [state.partition for state in grown.partitions] == [0, 1, 2, 3]
    assert grown.topic_id == image.topics["t"].topic_id


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (NewPartitions(name="t", total_count=2), ErrorCode.invalid_partitions),
        (NewPartitions(name="t", total_count=1), ErrorCode.invalid_partitions),
        (NewPartitions(name="t", total_count=-1), ErrorCode.invalid_partitions),
        (NewPartitions(name="t", total_count=PARTITIONS_MAX + 1), ErrorCode.invalid_partitions),
        (NewPartitions(name="t", total_count=2**31 - 1), ErrorCode.invalid_partitions),
        (NewPartitions(name="u", total_count=4), ErrorCode.unknown_topic_or_partition),
        (NewPartitions(name="a/b", total_count=4), ErrorCode.invalid_topic_exception),
        (NewPartitions(name="t", total_count=4, assignment=[[1]]), ErrorCode.invalid_replica_assignment),
        (NewPartitions(name="t", total_count=3, assignment=[[9]]), ErrorCode.invalid_replica_assignment),
        (NewPartitions(name="t", total_count=3, assignment=[[1, 1]]), ErrorCode.invalid_replica_assignment),
        (NewPartitions(name="t", total_count=3, assignment=[[]]), ErrorCode.invalid_replica_assignment),
        (NewPartitions(name="t", total_count=3, assignment=[[1, 2]]), ErrorCode.invalid_replica_assignment),
    ],
)
def test_impossible_additions(command: NewPartitions, code: ErrorCode) -> None:
    assert refused(plan_create_partitions(with_topic("t", 2, brokers=[1, 2]), [command])) == code


def test_replicas_are_placed_in_different_racks_and_not_on_brokers_that_are_about_to_stop() -> None:
    image = after(cluster(), [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b", is_stopping=True)])
    topic = create(image, NewTopic(name="t", partition_count=6, replication_factor=2)).results[0].topic
    assert topic is not None
    assert all(NodeId(3) in state.replicas and NodeId(4) not in state.replicas for state in topic.partitions)
    topic = create(image, NewTopic(name="t", replication_factor=4)).results[0].topic
    assert topic is not None
    assert len(topic.partitions[0].replicas) == 4


def test_additions_with_too_few_brokers_alive() -> None:
    image = cluster([1, 2])
    image = after(image, create(image, NewTopic(name="t", replication_factor=2)).all_writes)
    image = after(image, [Delete("/brokers/ids/2")])
    plan = plan_create_partitions(image, [NewPartitions(name="t", total_count=3)])
    assert refused(plan) == ErrorCode.invalid_replication_factor


new_topics = st.builds(
    NewTopic,
    name=st.sampled_from(["a", "b", "a.b", "a_b", "", "..", "a/b", "x" * 300]),
    partition_count=st.sampled_from([-2, -1, 0, 1, 3, 4000, 2**31 - 1]),
    replication_factor=st.integers(-2, 5),
    assignment=st.lists(st.tuples(st.integers(-1, 3), st.lists(st.integers(0, 4), max_size=3)), max_size=3),
    config=st.dictionaries(
        st.sampled_from(["retention.ms", "cleanup.policy", "flush.ms", "bad"]),
        st.one_of(st.none(), st.text(max_size=5), st.just("1000"), st.just("compact")),
        max_size=2,
    ),
)


@given(st.lists(new_topics, max_size=6), st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
def test_whatever_is_asked_the_image_follows_what_was_answered(topics: list[NewTopic], brokers: list[int]) -> None:
    image = cluster(brokers)
    plan = create(image, *topics)
    new = after(image, plan.all_writes)
    made = {str(result.name) for result in plan.results if result.code is ErrorCode.none}
    assert set(new.topics) == made
    assert {result.name for result in plan.results} == {topic.name for topic in topics}
    for topic in new.topics.values():
        for number, state in enumerate(topic.partitions):
            assert state.partition == number
            assert state.leader in state.isr
            assert set(state.isr) <= set(state.replicas) <= set(brokers)
    assert sum(len(topic.partitions) for topic in new.topics.values()) <= PARTITIONS_MAX
    gone = plan_delete_topics(new, [DeleteTopic(name) for name in made])
    assert after(new, gone.all_writes).topics == {}
