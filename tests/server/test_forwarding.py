"""Requests for the controller, and topics that a broker needs itself, on a broker that is not the controller."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from in_process_broker import RunningBroker, frame, logged_errors, running_broker, until

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_NODE, NodeId
from penstock.cluster import records
from penstock.cluster.controller import Controller
from penstock.cluster.store.base import Delete, Put
from penstock.cluster.store.memory import MemoryStore
from penstock.server import handlers
from penstock.server.api import APIS, ApiKey
from penstock.server.authentication import MECHANISM, proof_of
from penstock.wire.codec import ZERO_UUID, Struct

handlers.register_all()

ASK_S = 60.0

Scenario = Callable[[RunningBroker, RunningBroker], Awaitable[None]]


@asynccontextmanager
async def two_brokers(tmp_path: Path, store: MemoryStore) -> AsyncIterator[tuple[RunningBroker, RunningBroker]]:
    """The first is the controller."""
    async with (
        running_broker(tmp_path / "1", store, node_id=1) as one,
        running_broker(tmp_path / "2", store, node_id=2) as two,
    ):
        await until(lambda: len(one.broker.metadata.image.brokers) == 2)
        assert two.broker.metadata.image.controller_id == 1
        yield one, two


def run_two(tmp_path: Path, scenario: Scenario, store: MemoryStore | None = None) -> None:
    async def main() -> None:
        async with two_brokers(tmp_path, MemoryStore() if store is None else store) as (one, two):
            await scenario(one, two)

    with logged_errors() as errors:
        asyncio.run(main())
    assert errors == []


def new_topic(name: str, **fields: Any) -> dict[str, Any]:
    topic = Struct(name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[])
    return {"topics": [topic], "timeout_ms": 30_000, "validate_only": False, **fields}


def test_what_the_controller_does_can_be_asked_of_any_broker(tmp_path: Path) -> None:
    """With a real admin client, which is told of the second broker only and may not ask the controller itself."""

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        def administer() -> None:
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{two.listener.port}"})
            admin.create_topics([NewTopic("t", 2, 1)])["t"].result(ASK_S)
            admin.create_partitions([NewPartitions("t", 3)])["t"].result(ASK_S)
            entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(ASK_S)
            topic = admin.list_topics(timeout=ASK_S).topics["t"]
            assert len(topic.partitions) == 3
            admin.delete_topics(["t"])["t"].result(ASK_S)

        hide_controller(two, 2)
        await asyncio.to_thread(administer)
        await until(lambda: not two.broker.metadata.image.topics)
        assert served_envelopes(one) > 0

    run_two(tmp_path, scenario)


def hide_controller(broker: RunningBroker, shown: int) -> None:
    """Have Metadata of this broker name itself as the controller and the only broker, as behind one address."""
    context = broker.broker._dispatcher._context
    real = APIS[ApiKey.METADATA].handler
    assert real is not None

    def disguise(ctx: Any, header: Any, request: Any) -> Any:
        answer = real(ctx, header, request)
        if ctx is not context:
            return answer

        async def later() -> Struct:
            found = answer if isinstance(answer, Struct) else await answer
            found.controller_id = shown
            found.brokers = [item for item in found.brokers if item.node_id == shown]
            return found

        return later()

    routes = broker.broker._dispatcher._routes
    for key, route in list(routes.items()):
        if key[0] == ApiKey.METADATA:
            routes[key] = route._replace(api=route.api._replace(handler=disguise))


def served_envelopes(broker: RunningBroker) -> int:
    return sum(item.authentication.broker is not None for item in broker.listener._connections)


@pytest.mark.parametrize("key", [key for key in sorted(APIS) if APIS[key].is_at_controller])
def test_every_version_is_passed_on_and_answered_as_by_the_controller(tmp_path: Path, key: int) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await two.create_topic("there")
        await until(lambda: "there" in two.broker.metadata.image.topics)
        fields = REQUESTS[ApiKey(key)]
        direct, passed_on = await one.connect(), await two.connect()
        for version in APIS[key].versions:
            expected = await direct.ask(key, version, **fields)
            assert await passed_on.ask(key, version, **fields) == expected, version
        direct.close()
        passed_on.close()
        await two.delete_topic("there")

    run_two(tmp_path, scenario)


TOPIC = 2
REQUESTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CREATE_TOPICS: {**new_topic("new"), "validate_only": True},
    ApiKey.DELETE_TOPICS: {
        "topic_names": ["missing"],
        "topics": [Struct(name="missing", topic_id=ZERO_UUID)],
        "timeout_ms": 1000,
    },
    ApiKey.CREATE_PARTITIONS: {
        "topics": [Struct(name="there", count=5, assignments=None)],
        "timeout_ms": 1000,
        "validate_only": True,
    },
    ApiKey.ALTER_CONFIGS: {
        "resources": [
            Struct(resource_type=TOPIC, resource_name="there", configs=[Struct(name="retention.ms", value="5")])
        ],
        "validate_only": True,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            Struct(
                resource_type=TOPIC,
                resource_name="there",
                configs=[Struct(name="retention.ms", config_operation=0, value="many")],
            )
        ],
        "validate_only": True,
    },
    ApiKey.ELECT_LEADERS: {
        "election_type": 0,
        "topic_partitions": [Struct(topic="there", partitions=[0]), Struct(topic="missing", partitions=[0])],
        "timeout_ms": 1000,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "timeout_ms": 1000,
        "allow_replication_factor_change": False,
        "topics": [Struct(name="there", partitions=[Struct(partition_index=0, replicas=None)])],
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"timeout_ms": 1000, "topics": None},
    ApiKey.ALTER_CLIENT_QUOTAS: {
        "entries": [
            Struct(
                entity=[Struct(entity_type="client-id", entity_name="a")],
                ops=[Struct(key="producer_byte_rate", value=1.0, remove=False)],
            )
        ],
        "validate_only": True,
    },
}


def test_many_requests_are_passed_on_at_once(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        clients = [await two.connect() for _ in range(10)]
        answers = await asyncio.gather(
            *(client.ask(ApiKey.CREATE_TOPICS, 7, **new_topic(f"t{n}")) for n, client in enumerate(clients))
        )
        assert [(item.topics[0].name, item.topics[0].error_code) for item in answers] == [
            (f"t{n}", 0) for n in range(10)
        ]
        assert served_envelopes(one) == 1
        for client in clients:
            client.close()

    run_two(tmp_path, scenario)


def test_a_topic_that_is_only_mentioned_is_made(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        client = await two.connect()
        answer = await client.ask(
            ApiKey.METADATA,
            8,
            topics=[Struct(name="mentioned")],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        (topic,) = answer.topics
        assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "mentioned", 1)
        client.close()

    run_two(tmp_path, scenario)


def test_groups_begin_on_any_broker(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        def work() -> None:
            address = {"bootstrap.servers": f"127.0.0.1:{two.listener.port}"}
            producer = Producer(address)
            producer.produce("jobs", b"one")
            assert producer.flush(ASK_S) == 0
            settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
            consumer = Consumer({**address, **settings})
            consumer.subscribe(["jobs"])
            message = consumer.poll(ASK_S)
            assert message is not None and message.error() is None and message.value() == b"one"
            consumer.commit(asynchronous=False)
            consumer.close()

        await asyncio.to_thread(work)
        assert "__consumer_offsets" in two.broker.metadata.image.topics

    run_two(tmp_path, scenario)


# When there is no controller to ask


def test_clients_hear_not_controller_while_there_is_none(tmp_path: Path) -> None:
    store = MemoryStore()

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        # Somebody who is not there holds the chair.
        await store.commit([], [Put(records.CONTROLLER, records.encode({"node": 9}))])
        await until(lambda: two.broker.metadata.image.controller_id == 9)
        client = await two.connect()
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, **new_topic("t"))
        assert answer.topics[0].error_code == ErrorCode.not_controller
        answer = await client.ask(
            ApiKey.METADATA,
            8,
            topics=[Struct(name="mentioned")],
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        assert answer.topics[0].error_code == ErrorCode.leader_not_available
        answer = await client.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["g"], key_type=0)
        assert answer.coordinators[0].error_code == ErrorCode.coordinator_not_available
        await store.commit([], [Delete(records.CONTROLLER)])  # And leaves it: one of the two takes it.
        await until(lambda: two.broker.metadata.image.controller_id not in (9, NO_NODE))
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, **new_topic("t"))
        assert answer.topics[0].error_code == 0
        client.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.server.peers.CONNECT_S_MAX", 0.3)
        run_two(tmp_path, scenario, store)


def test_reliability_rule_4_a_broker_that_no_longer_controls_says_so(tmp_path: Path) -> None:
    """The sender's image lags: it takes the other for the controller, which passes nothing on again."""
    store = MemoryStore()

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        async def ask() -> Struct:
            envelope = Struct(
                request_data=frame(ApiKey.CREATE_TOPICS, 7, **new_topic("t"))[4:],
                request_principal=None,
                client_host_address=b"\x7f\0\0\1",
            )
            return await peer.ask(ApiKey.ENVELOPE, 0, envelope, ASK_S)

        peer = await one.broker.peers.connect(2)
        assert (await ask()).error_code == ErrorCode.not_controller
        request = Struct(**new_topic("t"))
        answer = await peer.ask(ApiKey.CREATE_TOPICS, 7, request, ASK_S)  # Nor what comes without an envelope.
        assert answer.topics[0].error_code == ErrorCode.not_controller
        assert one.broker.metadata.image.topics == {}

    run_two(tmp_path, scenario, store)


def test_a_request_that_fails_ends_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Controller.create_topics

    async def create_topics(self: Controller, topics: Any, **fields: Any) -> Any:
        if topics[0].name == "poison" and self._metadata.image.controller_id == self._config.node_id == 1:
            raise RuntimeError("poison")
        return await real(self, topics, **fields)

    monkeypatch.setattr(Controller, "create_topics", create_topics)

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        client, other = await two.connect(), await two.connect()
        answers = await asyncio.gather(
            client.ask(ApiKey.CREATE_TOPICS, 7, **new_topic("poison")),
            other.ask(ApiKey.CREATE_TOPICS, 7, **new_topic("fine")),
        )
        assert [item.topics[0].error_code for item in answers] == [ErrorCode.not_controller, 0]
        client.close()
        other.close()

    async def main() -> None:
        async with two_brokers(tmp_path, MemoryStore()) as (one, two):
            await scenario(one, two)

    with logged_errors() as errors:
        asyncio.run(main())
    assert [record.getMessage().split()[0:2] for record in errors] == [["forwarded", "request"]]


def test_a_request_without_room_for_an_envelope_leaves_the_link_alone(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        client = await two.connect()
        config = Struct(name="retention.ms", value="1" * 30_000)
        topic = Struct(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[config])
        # The forwarder's limit alone: the broker is to take the request itself.
        forwarder = two.broker._dispatcher._context.forwarder
        forwarder._config = two.broker.config._replace(socket_request_max_bytes=30_000)
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000, validate_only=False)
        assert answer.topics[0].error_code in (ErrorCode.not_controller, ErrorCode.invalid_config)
        assert served_envelopes(one) == 0
        client.close()

    run_two(tmp_path, scenario)


# Who may not


def test_reliability_s15_an_envelope_is_for_brokers_only(tmp_path: Path) -> None:
    store = MemoryStore()

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        client = await one.connect()
        fields = {
            "request_data": frame(ApiKey.CREATE_TOPICS, 7, **new_topic("t"))[4:],
            "request_principal": b"User:admin",
            "client_host_address": b"\x7f\0\0\1",
        }
        answer = await client.ask(ApiKey.ENVELOPE, 0, **fields)
        assert (answer.error_code, answer.response_data) == (ErrorCode.cluster_authorization_failed, None)
        # One that was a broker, and is another by now.
        await client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=MECHANISM)
        before = one.broker.metadata.image.brokers[NodeId(2)]
        assert (await client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=proof_of(before))).error_code == 0
        assert (await client.ask(ApiKey.ENVELOPE, 0, **fields)).error_code == 0
        store.expire_leases("broker-2")
        await one.broker.metadata.until(
            lambda image: NodeId(2) in image.brokers and image.brokers[NodeId(2)].epoch > before.epoch
        )
        answer = await client.ask(ApiKey.ENVELOPE, 0, **fields)
        assert answer.error_code == ErrorCode.cluster_authorization_failed
        client.close()

    run_two(tmp_path, scenario, store)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.invalid_request),
        (frame(ApiKey.API_VERSIONS, 0)[4:], ErrorCode.invalid_request),
        (struct.pack(">hhih", 1, 12, 1, -1), ErrorCode.invalid_request),
        (struct.pack(">hhih", ApiKey.ENVELOPE, 0, 1, -1) + b"\0", ErrorCode.invalid_request),
        (struct.pack(">hhih", ApiKey.CREATE_TOPICS, 99, 1, -1), ErrorCode.unsupported_version),
        (struct.pack(">hhih", 9999, 0, 1, -1), ErrorCode.unsupported_version),
        (struct.pack(">hhih", ApiKey.CREATE_TOPICS, 7, 1, 50) + b"\0", ErrorCode.invalid_request),
        (frame(ApiKey.CREATE_TOPICS, 7, **new_topic("t"))[4:-3], ErrorCode.invalid_request),
    ],
    ids=["empty", "not the controller's", "fetch", "envelope", "version", "key", "client id", "cut short"],
)
def test_what_is_no_request_for_the_controller_is_refused(tmp_path: Path, data: bytes, code: ErrorCode) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        peer = await two.broker.peers.connect(1)
        envelope = Struct(request_data=data, request_principal=None, client_host_address=b"?")
        answer = await peer.ask(ApiKey.ENVELOPE, 0, envelope, ASK_S)
        assert (answer.error_code, answer.response_data) == (code, None)
        assert not peer.is_lost

    run_two(tmp_path, scenario)


def test_quotas_of_clients_are_not_for_brokers(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        client = await one.connect()
        entry = Struct(
            entity=[Struct(entity_type="client-id", entity_name=None)],
            ops=[Struct(key="request_percentage", value=0.000001, remove=False)],
        )
        await client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
        await until(lambda: one.broker._quotas.active is not None)
        envelope = {"request_data": b"", "request_principal": None, "client_host_address": b""}
        assert (await client.ask(ApiKey.METADATA, 0, topics=[])).topics == []
        # The throttled client is not read from for a while, and hears that it may not when it is.
        client.send(ApiKey.ENVELOPE, 0, **envelope)
        peer = await two.broker.peers.connect(1)
        for _ in range(20):
            request = Struct(include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=False)
            assert (await peer.ask(ApiKey.DESCRIBE_CLUSTER, 2, request, ASK_S)).throttle_time_ms == 0
        answer = await client.receive_reply(ApiKey.ENVELOPE, 0)
        assert answer.error_code == ErrorCode.cluster_authorization_failed
        client.close()

    run_two(tmp_path, scenario)
