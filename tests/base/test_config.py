"""Broker and topic settings: what is read, what is refused, and that the docs say the same."""

import logging
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.config import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS, BrokerConfig
from penstock.base.config_docs import configuration_page
from penstock.base.config_key import InvalidConfig, render, unusable, with_stored
from penstock.base.topic_config import (
    BROKER_SYNONYMS,
    DEFAULT_TOPIC_CONFIG,
    TOPIC_CONFIGS,
    TopicConfig,
    parse_topic_config,
)

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def load(**properties: str) -> BrokerConfig:
    return BrokerConfig.load({name.replace("_", "."): value for name, value in properties.items()})


# Broker


def test_no_properties_give_the_defaults() -> None:
    assert BrokerConfig.load({}) == BrokerConfig()
    assert BrokerConfig().host == "localhost"
    assert BrokerConfig().port == 9092


def test_every_default_is_what_the_table_says() -> None:
    config = BrokerConfig()
    for name, key in BROKER_CONFIGS.items():
        if name != "advertised.listeners":
            assert config.text(name) == key.default, name


def test_listener_gives_host_and_port() -> None:
    config = load(listeners="PLAINTEXT://broker-1.example:19092")
    assert (config.host, config.port, config.advertised_host, config.advertised_port) == (
        "broker-1.example",
        19092,
        None,
        None,
    )


def test_advertised_listener_is_its_own_address() -> None:
    config = BrokerConfig.load(
        {"listeners": "PLAINTEXT://0.0.0.0:9092", "advertised.listeners": "PLAINTEXT://[2001:db8::1]:19092"}
    )
    assert (config.host, config.advertised_host, config.advertised_port) == ("0.0.0.0", "2001:db8::1", 19092)
    assert config.text("advertised.listeners") == "PLAINTEXT://[2001:db8::1]:19092"


def test_port_zero_leaves_the_advertised_port_open() -> None:
    config = load(listeners="PLAINTEXT://localhost:0")
    assert config.port == 0
    assert config.advertised_port is None


@pytest.mark.parametrize(
    "properties",
    [
        {"listeners": "localhost:9092"},
        {"listeners": "PLAINTEXT://localhost:65536"},
        {"listeners": "PLAINTEXT://localhost:9092,PLAINTEXT://localhost:9093"},
        {"listeners": "SASL_SSL://localhost:9092"},
        {"listeners": "PLAINTEXT://0.0.0.0:9092"},
        {"listeners": "PLAINTEXT://:9092"},
        {"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
        {"log.dirs": "a,b"},
        {"log.dirs": ""},
        {"node.id": "-1"},
        {"node.id": "one"},
        {"node.id": "١"},  # noqa: RUF001  # A digit, but not an ASCII one.
        {"node.id": "1_0"},
        {"num.partitions": "0"},
        {"auto.create.topics.enable": "yes"},
        {"log.retention.hours": "-2"},
        {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
        {"queued.max.request.bytes": "2048"},
        {"broker.rack": "${env:HOME}"},
        {"log.flush.interval.messages": "1"},
    ],
)
def test_bad_values_are_refused_with_the_key_and_what_is_allowed(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig) as error:
        BrokerConfig.load(properties)
    assert any(name in str(error.value) or name.startswith("log.cleaner") for name in properties)
    assert "allowed is" in str(error.value) or "must" in str(error.value) or "can only be" in str(error.value)


def test_all_unknown_keys_are_listed_at_once() -> None:
    with pytest.raises(InvalidConfig, match=r"unknown settings: frobnicate, log\.retention\.days"):
        BrokerConfig.load({"log.retention.days": "3", "frobnicate": "1", "node.id": "1"})


@pytest.mark.parametrize("name", ["ssl.keystore.location", "sasl.enabled.mechanisms", "authorizer.class.name"])
def test_security_that_would_not_be_enforced_stops_the_start(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} cannot be set"):
        BrokerConfig.load({name: "x"})


def test_kraft_keys_are_ignored_with_a_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.load({"process.roles": "broker,controller", "controller.quorum.voters": "1@localhost:1"})
    assert config == BrokerConfig()
    assert [record.getMessage().split()[:3] for record in caplog.records] == [
        ["setting", "ignored", "key=process.roles"],
        ["setting", "ignored", "key=controller.quorum.voters"],
    ]


def test_the_stock_server_properties_of_kafka_start() -> None:
    config = BrokerConfig.load(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "listeners": "PLAINTEXT://localhost:9092",
            "inter.broker.listener.name": "PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://localhost:9092",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "num.network.threads": "3",
            "num.io.threads": "8",
            "socket.send.buffer.bytes": "102400",
            "socket.receive.buffer.bytes": "102400",
            "socket.request.max.bytes": "104857600",
            "log.dirs": "/tmp/kraft-combined-logs",
            "num.partitions": "1",
            "num.recovery.threads.per.data.dir": "2",
            "offsets.topic.replication.factor": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.retention.hours": "168",
            "log.segment.bytes": "1073741824",
            "log.retention.check.interval.ms": "300000",
        }
    )
    assert config.topic_defaults.retention_ms == 168 * 3_600_000


def test_values_are_never_expanded() -> None:
    assert load(log_dirs="${file:/etc/passwd}").data_dir == "${file:/etc/passwd}"


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({}, 14 * 86_400_000),
    ],
)
def test_of_several_units_the_finest_counts(properties: dict[str, str], retention_ms: int) -> None:
    assert BrokerConfig.load(properties).topic_defaults.retention_ms == retention_ms


def test_node_id_wins_over_broker_id() -> None:
    assert BrokerConfig.load({"broker.id": "2"}).node_id == 2
    assert BrokerConfig.load({"broker.id": "2", "node.id": "3"}).node_id == 3
    assert BrokerConfig.load({"node.id": "3", "broker.id": "2"}).node_id == 3


def test_overrides_at_run_time_change_one_setting() -> None:
    config = BrokerConfig(num_partitions=3).with_overrides({"num.partitions": "5"})
    assert config == BrokerConfig(num_partitions=5)
    assert BROKER_CONFIGS.keys() | BROKER_SYNONYMS.keys() >= DYNAMIC_BROKER_CONFIGS


def test_of_stored_settings_only_those_are_left_out_that_cannot_be_used() -> None:
    stored = {"num.partitions": "many", "log.cleanup.policy": "tiered"}
    stored |= {"log.retention.ms": "5", "log.retention.hours": "1"}
    defaults = BrokerConfig().topic_defaults
    assert with_stored(BrokerConfig(), stored) == BrokerConfig(topic_defaults=replace(defaults, retention_ms=5))
    assert with_stored(defaults, {"retention.ms": "5", "no.such": "1"}) == replace(defaults, retention_ms=5)
    assert unusable(BrokerConfig(), stored).keys() == {"num.partitions", "log.cleanup.policy"}
    assert unusable(defaults, {"retention.ms": "5"}) == {}


# Topic


def test_every_topic_field_has_a_key_and_every_key_a_field() -> None:
    attributes = {key.attribute for key in TOPIC_CONFIGS.values() if key.refused is None}
    assert attributes == {field.name for field in fields(TopicConfig)}


def test_every_default_passes_its_own_rule() -> None:
    for key in TOPIC_CONFIGS.values():
        assert key.default is not None
        assert render(key.parse(key.default)) == key.default
        assert DEFAULT_TOPIC_CONFIG.text(key.name) == key.default


def test_overrides_go_over_the_defaults() -> None:
    defaults = TopicConfig(retention_ms=5, segment_bytes=2048)
    config = parse_topic_config({"retention.ms": " 7 ", "cleanup.policy": "compact, delete"}, defaults)
    assert (config.retention_ms, config.segment_bytes) == (7, 2048)
    assert config.is_compacted
    assert config.is_deleted


def test_empty_cleanup_policy_keeps_everything() -> None:
    config = parse_topic_config({"cleanup.policy": ""}, DEFAULT_TOPIC_CONFIG)
    assert not config.is_compacted
    assert not config.is_deleted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "${file:/etc/passwd}"),
        ("retention.ms", "$(id)"),
        ("retention.ms", "{{7*7}}"),
        ("retention.ms", "__import__('os')"),
        ("retention.ms", "9" * 5000),
        ("retention.ms", str(2**63)),
        ("segment.bytes", "1023"),
        ("max.message.bytes", str(2**31)),
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", "shred"),
        ("message.timestamp.type", "createtime"),
        ("compression.type", "brotli"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.insync.replicas", "0"),
        ("unclean.leader.election.enable", "1"),
        ("penstock.durability", "none"),
        ("leader.replication.throttled.replicas", "0"),
        ("follower.replication.throttled.replicas", "0:1,2:x"),
        ("no.such.key", "1"),
        ("", "1"),
    ],
)
def test_bad_topic_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        parse_topic_config({name: value}, DEFAULT_TOPIC_CONFIG)
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flush.messages", "1"),
        ("flush.ms", "1000"),
        ("compression.zstd.level", "7"),
        ("preallocate", "true"),
        ("remote.storage.enable", "true"),
        ("local.retention.ms", "5"),
    ],
)
def test_what_cannot_be_honoured_accepts_its_default_alone(name: str, value: str) -> None:
    default = TOPIC_CONFIGS[name].default
    assert default is not None
    assert parse_topic_config({name: default}, DEFAULT_TOPIC_CONFIG) == DEFAULT_TOPIC_CONFIG
    with pytest.raises(InvalidConfig, match=f"{name} can only be"):
        parse_topic_config({name: value}, DEFAULT_TOPIC_CONFIG)


def test_compaction_lags_must_not_cross() -> None:
    with pytest.raises(InvalidConfig, match=r"at most max\.compaction\.lag\.ms"):
        parse_topic_config({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, DEFAULT_TOPIC_CONFIG)


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=30))
def test_any_text_is_either_parsed_or_refused(name: str, value: str) -> None:
    try:
        config = parse_topic_config({name: value}, DEFAULT_TOPIC_CONFIG)
    except InvalidConfig:
        return
    assert parse_topic_config({name: config.text(name)}, DEFAULT_TOPIC_CONFIG) == config


# Docs


def test_the_configuration_page_is_in_step() -> None:
    assert DOCS.read_text() == configuration_page(), "run: python -m penstock.base.config_docs > docs/configuration.md"


def test_every_key_is_on_the_configuration_page() -> None:
    page = configuration_page()
    for name in (*BROKER_CONFIGS, *TOPIC_CONFIGS, *BROKER_SYNONYMS):
        assert f"`{name}`" in page
