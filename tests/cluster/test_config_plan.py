"""Decisions about settings: image and alterations in, writes and answers out."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import after, cluster

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.topic_config import TOPIC_CONFIGS
from penstock.cluster import records
from penstock.cluster.config_plan import (
    AlterConfig,
    ConfigOperation,
    ConfigResult,
    Operation,
    ResourceType,
    plan_alter_configs,
)
from penstock.cluster.image import ClusterImage
from penstock.cluster.plan import Plan
from penstock.cluster.store.base import Check, Delete, Put
from penstock.cluster.topic_plan import NewTopic, plan_create_topics

CONFIG = BrokerConfig()
SET, DELETE, APPEND, SUBTRACT = Operation


def image_with(**overrides: str) -> ClusterImage:
    """A cluster with topic t, which has the overrides (underscores for dots)."""
    config = {name.replace("_", "."): value for name, value in overrides.items()}
    image = cluster()
    return after(
        image, plan_create_topics(image, [NewTopic(name="t", config=config)], CONFIG, lambda: UUID(int=1)).writes
    )


def alter(
    image: ClusterImage, *operations: tuple[str, int, str | None], replaces_all: bool = False
) -> Plan[ConfigResult]:
    command = AlterConfig(ResourceType.TOPIC, "t", [ConfigOperation(*item) for item in operations], replaces_all)
    return plan_alter_configs(image, [command], CONFIG)


def overrides_after(image: ClusterImage, plan: Plan[ConfigResult]) -> dict[str, str]:
    assert [result.code for result in plan.results] == [ErrorCode.none]
    return dict(after(image, plan.writes).topics["t"].config)


def refused(plan: Plan[ConfigResult]) -> ErrorCode:
    assert plan.writes == []
    assert plan.results[0].message
    return plan.results[0].code


def test_set_writes_the_overrides_under_the_versions_seen() -> None:
    image = image_with(retention_ms="1")
    plan = alter(image, ("segment.ms", SET, "2"))
    topic = image.topics["t"]
    assert plan.checks == [Check("/brokers/topics/t", topic.version), Check("/config/topics/t", topic.config_version)]
    assert plan.writes == [Put("/config/topics/t", b'{"retention.ms":"1","segment.ms":"2"}')]


def test_deleting_the_last_override_deletes_the_key() -> None:
    image = image_with(retention_ms="1")
    plan = alter(image, ("retention.ms", DELETE, None))
    assert plan.writes == [Delete("/config/topics/t")]
    assert overrides_after(image, plan) == {}


def test_no_change_writes_nothing() -> None:
    assert alter(image_with(retention_ms="1"), ("retention.ms", SET, "1")).writes == []
    assert alter(image_with(), ("retention.ms", DELETE, None)).writes == []


def test_append_and_subtract_work_on_lists_and_start_from_the_default() -> None:
    image = image_with()
    assert overrides_after(image, alter(image, ("cleanup.policy", APPEND, "compact"))) == {
        "cleanup.policy": "delete,compact"
    }
    image = image_with(cleanup_policy="compact,delete")
    assert overrides_after(image, alter(image, ("cleanup.policy", SUBTRACT, "delete"))) == {"cleanup.policy": "compact"}
    assert overrides_after(image, alter(image, ("cleanup.policy", APPEND, "compact"))) == {
        "cleanup.policy": "compact,delete"
    }


def test_replacing_all_drops_what_is_not_mentioned() -> None:
    image = image_with(retention_ms="1", segment_ms="2")
    assert overrides_after(image, alter(image, ("segment.ms", SET, "3"), replaces_all=True)) == {"segment.ms": "3"}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([("no.such", SET, "1")], ErrorCode.invalid_config),
        ([("no.such", DELETE, None)], ErrorCode.invalid_config),
        ([("retention.ms", SET, "soon")], ErrorCode.invalid_config),
        ([("retention.ms", SET, "${file:/etc/passwd}")], ErrorCode.invalid_config),
        ([("flush.ms", SET, "1")], ErrorCode.invalid_config),
        ([("cleanup.policy", APPEND, "shred")], ErrorCode.invalid_config),
        ([("retention.ms", SET, None)], ErrorCode.invalid_request),
        ([("retention.ms", APPEND, "1")], ErrorCode.invalid_request),
        ([("retention.ms", 9, "1")], ErrorCode.invalid_request),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.invalid_request),
        ([("segment.ms", SET, "1"), ("retention.ms", SET, "soon")], ErrorCode.invalid_config),
        ([("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")], ErrorCode.invalid_config),
    ],
)
def test_refused_operations_change_nothing(operations: list[tuple[str, int, str | None]], code: ErrorCode) -> None:
    assert refused(alter(image_with(), *operations)) == code


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        (ResourceType.TOPIC, "u", ErrorCode.unknown_topic_or_partition),
        (ResourceType.TOPIC, "../u", ErrorCode.invalid_topic_exception),
        (ResourceType.BROKER, "2", ErrorCode.invalid_request),
        (ResourceType.BROKER, "one", ErrorCode.invalid_request),
        (ResourceType.BROKER_LOGGER, "1", ErrorCode.invalid_request),
        (ResourceType.GROUP, "g", ErrorCode.invalid_request),
        (77, "x", ErrorCode.invalid_request),
    ],
)
def test_refused_resources(resource_type: int, name: str, code: ErrorCode) -> None:
    command = AlterConfig(resource_type, name, [ConfigOperation("retention.ms", SET, "1")])
    assert refused(plan_alter_configs(image_with(), [command], CONFIG)) == code


def test_a_resource_twice_in_one_request() -> None:
    command = AlterConfig(ResourceType.TOPIC, "t", [ConfigOperation("retention.ms", SET, "1")])
    plan = plan_alter_configs(image_with(), [command, command], CONFIG)
    assert len(plan.results) == 1
    assert refused(plan) == ErrorCode.invalid_request


@pytest.mark.parametrize(("name", "stored_as"), [("1", "1"), ("", records.ALL_BROKERS)])
def test_broker_settings_that_follow_at_run_time(name: str, stored_as: str) -> None:
    image = cluster()
    command = AlterConfig(ResourceType.BROKER, name, [ConfigOperation("num.partitions", SET, "7")])
    plan = plan_alter_configs(image, [command], CONFIG)
    assert plan.writes == [Put(records.broker_config_key(stored_as), b'{"num.partitions":"7"}')]
    assert after(image, plan.writes).broker_config(CONFIG).num_partitions == 7


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("num.partitions", SET, "0", ErrorCode.invalid_config),
        ("num.partitions", APPEND, "1", ErrorCode.invalid_request),
        ("listeners", SET, "PLAINTEXT://localhost:1", ErrorCode.invalid_request),
        ("log.dirs", DELETE, None, ErrorCode.invalid_request),
        ("no.such", SET, "1", ErrorCode.invalid_request),
    ],
)
def test_broker_settings_that_do_not(name: str, operation: int, value: str | None, code: ErrorCode) -> None:
    command = AlterConfig(ResourceType.BROKER, "1", [ConfigOperation(name, operation, value)])
    assert refused(plan_alter_configs(cluster(), [command], CONFIG)) == code


operations = st.lists(
    st.tuples(
        st.sampled_from([*sorted(TOPIC_CONFIGS), "bad"]),
        st.integers(-1, 4),
        st.one_of(
            st.none(), st.text(max_size=8), st.integers(-2, 2**40).map(str), st.sampled_from(["true", "compact"])
        ),
    ),
    max_size=4,
)


@given(st.lists(operations, max_size=4), st.booleans())
def test_what_was_accepted_can_always_be_read_back(steps: list[list[tuple[str, int, str | None]]], full: bool) -> None:
    image = image_with()
    for step in steps:
        plan = alter(image, *step, replaces_all=full)
        if plan.results[0].code is not ErrorCode.none:
            assert plan.writes == []
        image = after(image, plan.writes)
        image.topic_config("t", CONFIG)
