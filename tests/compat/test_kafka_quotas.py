"""kafka-configs sets, shows and removes quotas; clients are throttled to them, and told."""

import re
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent

from .broker import Broker
from .kafka_tools import CONFIGS, PRODUCER_PERFORMANCE, KafkaTools
from .topics import create_topic

BYTES_PER_S = 500_000
BURST_S = 10  # A new client may use so many seconds' worth at once.
THROTTLED_S = 6
VALUE_BYTES = 10_000
COUNT = BYTES_PER_S * (BURST_S + THROTTLED_S) // VALUE_BYTES
TOLERANCE = 0.15


def _alter(kafka_tools: KafkaTools, *arguments: str) -> str:
    return kafka_tools.output(CONFIGS, "--alter", *arguments)


def _describe(kafka_tools: KafkaTools, *arguments: str) -> dict[str, dict[str, float]]:
    """Quotas by the tool's words for their entity."""
    out = kafka_tools.output(CONFIGS, "--describe", *arguments)
    found = re.findall(r"^(?:Quota c|C)onfigs for (?:the )?(.*?) are (.*)$", out, re.MULTILINE)
    return {
        entity: {key: float(value) for key, value in (pair.split("=") for pair in pairs.split(", "))}
        for entity, pairs in found
    }


@pytest.mark.parametrize(
    ("entity", "shown", "quotas"),
    [
        (("--entity-type", "clients", "--entity-name", "billing"), "client-id 'billing'",
         {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0, "request_percentage": 12.5}),
        (("--entity-type", "users", "--entity-name", "b/ob", "--entity-type", "clients", "--entity-name", "c 1"),
         "user-principal 'b/ob', client-id 'c 1'", {"consumer_byte_rate": 7.0}),
        (("--entity-type", "users", "--entity-name", "carol", "--entity-type", "clients", "--entity-default"),
         "user-principal 'carol', the default client-id", {"consumer_byte_rate": 9.0}),
        (("--entity-type", "ips", "--entity-name", "192.0.2.1"), "ip '192.0.2.1'", {"connection_creation_rate": 10.0}),
    ],
    ids=["client", "user-client", "user-default-client", "ip"],
)  # fmt: skip
def test_quotas_are_added_shown_and_deleted(
    kafka_tools: KafkaTools, entity: tuple[str, ...], shown: str, quotas: dict[str, float]
) -> None:
    assert _describe(kafka_tools, *entity) == {}
    added = ",".join(f"{key}={value:g}" for key, value in quotas.items())
    assert "Completed updating config for" in _alter(kafka_tools, *entity, "--add-config", added)
    assert _describe(kafka_tools, *entity) == {shown: quotas}
    assert "Completed updating config for" in _alter(kafka_tools, *entity, "--delete-config", ",".join(quotas))
    assert _describe(kafka_tools, *entity) == {}


def test_quotas_of_a_user_are_added_and_deleted(kafka_tools: KafkaTools) -> None:
    """To show them the tool asks for SCRAM credentials, too, which are not served yet."""
    for options in (("--add-config", "producer_byte_rate=5"), ("--delete-config", "producer_byte_rate")):
        out = _alter(kafka_tools, "--entity-type", "users", "--entity-name", "alice", *options)
        assert "Completed updating config for user alice." in out


def test_all_quotas_of_a_type_are_shown(kafka_tools: KafkaTools) -> None:
    for name in ("one", "two"):
        entity = ("--entity-type", "clients", "--entity-name", name)
        _alter(kafka_tools, *entity, "--add-config", "producer_byte_rate=1000000000")
    found = _describe(kafka_tools, "--entity-type", "clients")
    assert {"client-id 'one'", "client-id 'two'"} <= found.keys()


@pytest.mark.parametrize(
    ("entity", "config"),
    [
        (("--entity-type", "clients", "--entity-name", "c"), "producer_byte_rate=-5"),
        (("--entity-type", "clients", "--entity-name", "c"), "controller_mutation_rate=5"),
        (("--entity-type", "ips", "--entity-name", "192.0.2.2"), "connection_creation_rate=0"),
    ],
)
def test_what_cannot_be_a_quota_is_refused(kafka_tools: KafkaTools, entity: tuple[str, ...], config: str) -> None:
    result = kafka_tools.run(CONFIGS, "--alter", *entity, "--add-config", config)
    assert result.exit_code == 1
    assert _describe(kafka_tools, *entity) == {}


@pytest.fixture
def limited_client(kafka_tools: KafkaTools, request: pytest.FixtureRequest) -> Iterator[str]:
    """A client id with a quota for what it writes and what it reads."""
    client_id = f"limited-{request.node.name}"
    entity = ("--entity-type", "clients", "--entity-name", client_id)
    quotas = ("producer_byte_rate", "consumer_byte_rate")
    _alter(kafka_tools, *entity, "--add-config", ",".join(f"{key}={BYTES_PER_S}" for key in quotas))
    yield client_id
    _alter(kafka_tools, *entity, "--delete-config", ",".join(quotas))


def _check_duration(began: float) -> None:
    """Not less than the quota asks for; on a busy machine it may be more, but not as if there were no burst."""
    took_s = time.monotonic() - began
    assert THROTTLED_S * (1 - TOLERANCE) <= took_s < THROTTLED_S + BURST_S, f"{took_s:.1f} s"


def _produce(broker: Broker, topic: str, client_id: str, throttled: list[ThrottleEvent]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": client_id,
            "throttle_cb": throttled.append,
            "batch.size": 100_000,
            "linger.ms": 5,
        }
    )
    for _ in range(COUNT):
        while True:
            try:
                producer.produce(topic, b"x" * VALUE_BYTES)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_a_producer_is_throttled_to_its_quota_and_told(broker: Broker, topic_prefix: str, limited_client: str) -> None:
    topic = f"{topic_prefix}-quota-produce"
    create_topic(broker.bootstrap, topic)
    throttled: list[ThrottleEvent] = []
    began = time.monotonic()
    _produce(broker, topic, limited_client, throttled)
    _check_duration(began)
    assert throttled
    assert max(event.throttle_time for event in throttled) > 0


def test_a_consumer_is_throttled_to_its_quota_and_reads_everything(
    broker: Broker, topic_prefix: str, limited_client: str
) -> None:
    topic = f"{topic_prefix}-quota-consume"
    create_topic(broker.bootstrap, topic)
    _produce(broker, topic, "unlimited", [])
    throttled: list[ThrottleEvent] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": limited_client,
            "group.id": f"{topic}-group",
            "auto.offset.reset": "earliest",
            "throttle_cb": throttled.append,
            "fetch.message.max.bytes": 200_000,
        }
    )
    consumer.subscribe([topic])
    began, count = time.monotonic(), 0
    while count < COUNT:
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        count += 1
    _check_duration(began)
    consumer.close()
    assert throttled


def test_kafkas_own_producer_is_throttled_to_its_quota(
    kafka_tools: KafkaTools, broker: Broker, topic_prefix: str, limited_client: str
) -> None:
    topic = f"{topic_prefix}-quota-java"
    create_topic(broker.bootstrap, topic)
    began = time.monotonic()
    out = kafka_tools.output(
        PRODUCER_PERFORMANCE, "--topic", topic, "--num-records", str(COUNT), "--record-size", str(VALUE_BYTES),
        "--throughput", "-1", "--command-property", f"client.id={limited_client}",
    )  # fmt: skip
    assert f"{COUNT} records sent" in out
    _check_duration(began)
