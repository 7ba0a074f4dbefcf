"""kafka-configs shows and changes the configs of topics, and shows those of the broker."""

import re

import pytest

from .broker import Broker, ExternalBroker, addresses
from .kafka_tools import CONFIGS, TOPICS, KafkaTools, ToolResult
from .topics import create_topic

WEEK_MS = "604800000"  # Kafka's default,
TWO_WEEKS_MS = "1209600000"  # and ours.


@pytest.fixture
def topic(broker: Broker, topic_prefix: str, request: pytest.FixtureRequest) -> str:
    """Created with retention.ms=-1 and nothing else."""
    name = f"{topic_prefix}-{request.node.name}"
    create_topic(broker.bootstrap, name)
    return name


def _configs(kafka_tools: KafkaTools, topic: str, *options: str) -> dict[str, str]:
    out = kafka_tools.output(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic, *options)
    return _parsed(out)


def _parsed(out: str) -> dict[str, str]:
    return dict(re.findall(r"^  ([\w.]+)=(.*?) sensitive=(?:true|false) synonyms=", out, re.MULTILINE))


def _alter(kafka_tools: KafkaTools, topic: str, *options: str) -> ToolResult:
    return kafka_tools.run(CONFIGS, "--alter", "--entity-type", "topics", "--entity-name", topic, *options)


def test_describe_shows_what_was_set(kafka_tools: KafkaTools, topic: str) -> None:
    assert _configs(kafka_tools, topic) == {"retention.ms": "-1"}


def test_describe_all_shows_kafkas_defaults(kafka_tools: KafkaTools, broker: Broker, topic: str) -> None:
    configs = _configs(kafka_tools, topic, "--all")
    expected = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "index.interval.bytes": "4096",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": str(broker.min_insync_replicas),
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "1073741824",
    }
    assert {name: configs.get(name) for name in expected} == expected


def test_describe_says_where_a_value_comes_from(kafka_tools: KafkaTools, topic: str) -> None:
    out = kafka_tools.output(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
    assert re.search(r"  retention\.ms=-1 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention\.ms=-1", out)
    assert re.search(r"  segment\.bytes=1073741824 sensitive=false synonyms=\{DEFAULT_CONFIG:log\.segment\.bytes=", out)


def test_configs_are_added_and_deleted(kafka_tools: KafkaTools, broker: Broker, topic: str) -> None:
    added = _alter(kafka_tools, topic, "--add-config", "max.message.bytes=2000000,cleanup.policy=[compact,delete]")
    assert f"Completed updating config for topic {topic}." in added.out
    assert _configs(kafka_tools, topic) == {
        "cleanup.policy": "compact,delete",
        "max.message.bytes": "2000000",
        "retention.ms": "-1",
    }
    deleted = _alter(kafka_tools, topic, "--delete-config", "retention.ms,max.message.bytes")
    assert f"Completed updating config for topic {topic}." in deleted.out
    assert _configs(kafka_tools, topic) == {"cleanup.policy": "compact,delete"}
    with_defaults = _configs(kafka_tools, topic, "--all")
    assert with_defaults["max.message.bytes"] == "1048588"
    assert with_defaults["retention.ms"] == (WEEK_MS if isinstance(broker, ExternalBroker) else TWO_WEEKS_MS)


def test_kafka_topics_shows_the_changed_config(kafka_tools: KafkaTools, topic: str) -> None:
    _alter(kafka_tools, topic, "--add-config", "segment.bytes=2097152")
    described = kafka_tools.output(TOPICS, "--describe", "--topic", topic)
    assert "segment.bytes=2097152" in described.splitlines()[0]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("retention.ms=soon", "InvalidConfigurationException"),
        ("nonsense=1", "InvalidConfigurationException"),
        ("cleanup.policy=shred", "InvalidConfigurationException"),
        ("max.message.bytes=-5", "InvalidConfigurationException"),
    ],
)
def test_bad_config_is_refused_and_changes_nothing(
    kafka_tools: KafkaTools, broker: Broker, topic_prefix: str, config: str, complaint: str
) -> None:
    topic = f"{topic_prefix}-bad-config-{config.split('=')[0]}"
    create_topic(broker.bootstrap, topic)
    result = _alter(kafka_tools, topic, "--add-config", config)
    assert result.exit_code == 1
    assert complaint in result.err
    assert _configs(kafka_tools, topic) == {"retention.ms": "-1"}


def test_unknown_topic_has_no_configs(kafka_tools: KafkaTools, topic_prefix: str) -> None:
    name = f"{topic_prefix}-never-created"
    result = kafka_tools.run(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", name)
    assert "UnknownTopicOrPartition" in result.err or f"topic '{name}' doesn't exist" in result.out + result.err


def test_broker_configs_are_described(kafka_tools: KafkaTools, broker: Broker) -> None:
    for node_id, address in _node_ids(kafka_tools, broker).items():
        out = kafka_tools.output(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", node_id, "--all")
        assert f"All configs for broker {node_id} are:" in out
        configs = _parsed(out)
        assert configs["message.max.bytes"] == "1048588"
        assert configs["log.segment.bytes"] == "1073741824"
        assert address in configs["advertised.listeners"]


def test_broker_has_no_dynamic_configs(kafka_tools: KafkaTools, broker: Broker) -> None:
    for node_id in _node_ids(kafka_tools, broker):
        out = kafka_tools.output(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", node_id)
        assert out.strip() == f"Dynamic configs for broker {node_id} are:"


def _node_ids(kafka_tools: KafkaTools, broker: Broker) -> dict[str, str]:
    """Each broker's, as kafka-configs itself finds it, with its address."""
    out = kafka_tools.output(CONFIGS, "--describe", "--entity-type", "brokers")
    found = sorted(re.findall(r"Dynamic configs for broker (\d+) are:", out))
    return dict(zip(found, addresses(broker), strict=True))
