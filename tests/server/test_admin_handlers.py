"""The admin APIs of a real broker over a socket: every served version, read back by kio's own decoder."""

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from in_process_broker import running_broker
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from penstock.base.config import BROKER_CONFIGS
from penstock.base.errors import ErrorCode
from penstock.base.topic_config import BROKER_SYNONYMS, TOPIC_CONFIGS
from penstock.cluster.records import ALL_BROKERS, broker_config_key, encode, topic_config_key
from penstock.cluster.store.base import Put
from penstock.server import handlers
from penstock.server.api import APIS, ApiKey
from penstock.server.broker import Broker
from penstock.wire.codec import ZERO_UUID, Struct, request_writer

handlers.register_all()

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND = 0, 1, 2
ILLEGAL_NAMES = ["", ".", "..", "../../etc/x", "a/b", "a\0b", "x" * 250, "é"]


def newest(key: ApiKey) -> int:
    return APIS[key].versions[-1]


def versions(*keys: ApiKey) -> list[Any]:
    return [pytest.param(key, version, id=f"{key.name}-v{version}") for key in keys for version in APIS[key].versions]


class Client:
    """Sends what our codec writes and reads replies with kio's decoder, to the last byte."""

    def __init__(self, broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.broker = broker
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)

    async def call(self, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
        version = newest(key) if version is None else version
        correlation_id = next(self._ids)
        flexible = load_request_schema(key, version).__flexible__
        out = bytearray(struct.pack(">hhih", key, version, correlation_id, 4) + b"test" + (b"\0" if flexible else b""))
        request_writer(key, version)(out, Struct(**fields))
        self._writer.write(struct.pack(">i", len(out)) + out)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        schema = load_response_schema(key, version)
        header, position = entity_reader(schema.__header_schema__)(frame, 0)
        assert header.correlation_id == correlation_id
        reply, read = entity_reader(schema)(frame, position)
        assert position + read == len(frame)
        return reply

    async def create(self, name: str, partitions: int = 1, **config: str) -> None:
        configs = [Struct(name=key.replace("_", "."), value=value) for key, value in config.items()]
        reply = await self.call(ApiKey.CREATE_TOPICS, topics=[new_topic(name, partitions, configs=configs)])
        assert reply.topics[0].error_code == ErrorCode.none

    async def metadata(self, *names: str, version: int | None = None, auto_create: bool = False) -> Any:
        topics = [Struct(name=name, topic_id=ZERO_UUID) for name in names]
        return await self.call(
            ApiKey.METADATA,
            version,
            topics=topics,
            allow_auto_topic_creation=auto_create,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )

    async def describe_configs(self, resource_type: int, name: str, *keys: str, **options: bool) -> Any:
        resource = Struct(resource_type=resource_type, resource_name=name, configuration_keys=list(keys) or None)
        reply = await self.call(ApiKey.DESCRIBE_CONFIGS, resources=[resource], **options)
        return reply.results[0]

    async def alter(self, resource_type: int, name: str, *operations: tuple[str, int, str | None]) -> Any:
        configs = [Struct(name=key, config_operation=operation, value=value) for key, operation, value in operations]
        resource = Struct(resource_type=resource_type, resource_name=name, configs=configs)
        reply = await self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
        return reply.responses[0]


Scenario = Callable[[Client], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a scenario against a broker; keywords are properties of the broker (underscores for dots)."""

    async def main(scenario: Scenario, properties: dict[str, str]) -> None:
        async with running_broker(
            tmp_path, properties={"listeners": "PLAINTEXT://localhost:0", **properties}
        ) as running:
            reader, writer = await asyncio.open_connection("localhost", running.listener.port)
            try:
                await scenario(Client(running.broker, reader, writer))
            finally:
                writer.close()

    def run_scenario(scenario: Scenario, **properties: str) -> None:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        asyncio.run(asyncio.wait_for(main(scenario, named), 30))

    return run_scenario


def new_topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> Struct:
    fields: dict[str, Any] = {"assignments": [], "configs": []} | more
    return Struct(name=name, num_partitions=partitions, replication_factor=factor, **fields)


# Metadata


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.METADATA))
def test_metadata_in_every_version(run: Run, key: ApiKey, version: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 2)
        reply = await client.metadata("t", "u", "a/b", "t", version=version, auto_create=version < 4)
        assert [(b.node_id, b.host, b.port) for b in reply.brokers] == [(1, "localhost", client.broker.listener.port)]
        topics = {topic.name: topic for topic in reply.topics}
        assert len(reply.topics) == 3
        assert [(p.partition_index, p.leader_id, p.replica_nodes) for p in topics["t"].partitions] == [
            (0, 1, (1,)),
            (1, 1, (1,)),
        ]
        assert topics["a/b"].error_code == ErrorCode.invalid_topic_exception
        # Until v4 a client cannot forbid that a topic is made on the way.
        unknown = ErrorCode.none if version < 4 else ErrorCode.unknown_topic_or_partition
        assert topics["u"].error_code == unknown
        image = client.broker.metadata.image
        if version >= 1:
            assert reply.controller_id == 1
        if version >= 2:
            assert reply.cluster_id == image.cluster_id
        if version >= 10:
            assert topics["t"].topic_id == image.topics["t"].topic_id
        if version >= 13:
            assert reply.error_code == ErrorCode.none

    run(scenario)


@pytest.mark.parametrize(("version", "topics"), [(0, []), (1, None), (13, None)])
def test_metadata_of_all_topics(run: Run, version: int, topics: list[Any] | None) -> None:
    async def scenario(client: Client) -> None:
        for name in ("b", "a"):
            await client.create(name)
        reply = await client.call(
            ApiKey.METADATA,
            version,
            topics=topics,
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        assert [topic.name for topic in reply.topics] == ["a", "b"]

    run(scenario)


def test_metadata_of_no_topics_from_v1_on(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        assert (await client.metadata(version=1)).topics == ()

    run(scenario)


def test_metadata_by_topic_id(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        known, unknown = client.broker.metadata.image.topics["t"].topic_id, UUID(int=5)
        reply = await client.call(
            ApiKey.METADATA,
            topics=[Struct(name=None, topic_id=topic_id) for topic_id in (known, unknown, ZERO_UUID)],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=True,
        )
        assert [(topic.name, topic.topic_id, topic.error_code) for topic in reply.topics] == [
            ("t", known, ErrorCode.none),
            (None, unknown, ErrorCode.unknown_topic_id),
            (None, None, ErrorCode.invalid_request),
        ]
        assert reply.topics[0].topic_authorized_operations == 3576  # What a Kafka without ACLs says.

    run(scenario)


def test_metadata_by_topic_id_with_an_empty_name(run: Run) -> None:
    """As Java's consumers ask for the topics of a subscription by pattern."""

    async def scenario(client: Client) -> None:
        await client.create("t")
        known = client.broker.metadata.image.topics["t"].topic_id
        reply = await client.call(
            ApiKey.METADATA,
            topics=[Struct(name="", topic_id=known)],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        assert [(topic.name, topic.error_code) for topic in reply.topics] == [("t", ErrorCode.none)]

    run(scenario)


def test_metadata_by_id_before_v12_is_refused(run: Run) -> None:
    async def scenario(client: Client) -> None:
        reply = await client.call(
            ApiKey.METADATA,
            10,
            topics=[Struct(name=None, topic_id=UUID(int=5))],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=True,
        )
        assert [(topic.name, topic.error_code) for topic in reply.topics] == [("", ErrorCode.invalid_request)]
        assert reply.cluster_authorized_operations == 8096

    run(scenario)


def test_auto_created_topic_is_there_at_once_with_the_defaults(run: Run) -> None:
    async def scenario(client: Client) -> None:
        topic = (await client.metadata("t", auto_create=True)).topics[0]
        assert topic.error_code == ErrorCode.none
        assert [partition.leader_id for partition in topic.partitions] == [1, 1, 1]
        assert len(list(client.broker.partitions)) == 3

    run(scenario, num_partitions="3")


@pytest.mark.parametrize("name", [*ILLEGAL_NAMES, "__consumer_offsets"])
def test_what_is_not_auto_created(run: Run, name: str, tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        topic = (await client.metadata(name, auto_create=True)).topics[0]
        illegal = name != "__consumer_offsets"
        expected = ErrorCode.invalid_topic_exception if illegal else ErrorCode.unknown_topic_or_partition
        assert topic.error_code == expected
        assert list(client.broker.partitions) == []

    run(scenario)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_auto_creation_that_is_disabled(run: Run) -> None:
    async def scenario(client: Client) -> None:
        topic = (await client.metadata("t", auto_create=True)).topics[0]
        assert topic.error_code == ErrorCode.unknown_topic_or_partition
        assert (
            await client.alter(BROKER, "1", ("auto.create.topics.enable", SET, "true"))
        ).error_code == ErrorCode.none
        topic = (await client.metadata("t", auto_create=True)).topics[0]
        assert topic.error_code == ErrorCode.none

    run(scenario, auto_create_topics_enable="false")


def test_auto_creation_of_a_colliding_name(run: Run) -> None:
    async def scenario(client: Client) -> None:
        reply = await client.metadata("a.b", "a_b", auto_create=True)
        assert [topic.error_code for topic in reply.topics] == [ErrorCode.none, ErrorCode.invalid_topic_exception]

    run(scenario)


# DescribeTopicPartitions, DescribeCluster


async def page(client: Client, *names: str, limit: int, cursor: Struct | None = None) -> Any:
    return await client.call(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        topics=[Struct(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 2000, 0, -1])
def test_pages_of_partitions_join_to_the_whole(run: Run, limit: int) -> None:
    async def scenario(client: Client) -> None:
        for name, partitions in (("c", 1), ("a", 3), ("b", 2)):
            await client.create(name, partitions)
        seen: list[tuple[str, int]] = []
        cursor = None
        for _ in range(10):
            reply = await page(client, limit=limit, cursor=cursor)
            found = [(topic.name, p.partition_index) for topic in reply.topics for p in topic.partitions]
            assert 1 <= len(found) <= max(limit, 1)
            seen += found
            if reply.next_cursor is None:
                break
            cursor = Struct(topic_name=reply.next_cursor.topic_name, partition_index=reply.next_cursor.partition_index)
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]

    run(scenario)


def test_pages_of_named_topics(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("b", 2)
        reply = await page(client, "z", "b", "a/b", limit=10)
        assert [(topic.name, topic.error_code) for topic in reply.topics] == [
            ("a/b", ErrorCode.unknown_topic_or_partition),
            ("b", ErrorCode.none),
            ("z", ErrorCode.unknown_topic_or_partition),
        ]
        past = await page(client, limit=10, cursor=Struct(topic_name="aa", partition_index=7))
        assert [(topic.name, len(topic.partitions)) for topic in past.topics] == [("b", 2)]

    run(scenario)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_CLUSTER))
def test_describe_cluster_in_every_version(run: Run, key: ApiKey, version: int) -> None:
    async def scenario(client: Client) -> None:
        fields = {"include_cluster_authorized_operations": True, "include_fenced_brokers": True}
        reply = await client.call(key, version, **fields)
        assert reply.error_code == ErrorCode.none
        assert (reply.cluster_id, reply.controller_id) == (client.broker.metadata.image.cluster_id, 1)
        assert [(broker.broker_id, broker.rack) for broker in reply.brokers] == [(1, "r1")]
        assert reply.cluster_authorized_operations == 8096
        if version >= 1:
            for endpoint_type, code in (
                (2, ErrorCode.mismatched_endpoint_type),
                (9, ErrorCode.unsupported_endpoint_type),
            ):
                refused = await client.call(key, version, endpoint_type=endpoint_type, **fields)
                assert (refused.error_code, refused.brokers) == (code, ())

    run(scenario, broker_rack="r1")


# CreateTopics, DeleteTopics, CreatePartitions


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CREATE_TOPICS))
def test_create_topics_in_every_version(run: Run, key: ApiKey, version: int) -> None:
    async def scenario(client: Client) -> None:
        reply = await client.call(
            key,
            version,
            topics=[new_topic("t", 2, configs=[Struct(name="retention.ms", value="5")]), new_topic("a/b")],
            validate_only=False,
        )
        made, refused = reply.topics
        assert (made.name, made.error_code, made.error_message) == ("t", ErrorCode.none, None)
        assert refused.error_code == ErrorCode.invalid_topic_exception
        assert refused.error_message
        assert sorted((p.topic_partition.topic, p.topic_partition.partition) for p in client.broker.partitions) == [
            ("t", 0),
            ("t", 1),
        ]
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (2, 1)
            values = {config.name: (config.value, config.config_source) for config in made.configs}
            assert values["retention.ms"] == ("5", 1)
            assert values["segment.bytes"] == ("1073741824", 5)
            assert (refused.num_partitions, refused.replication_factor) == (-1, -1)
        if version >= 7:
            assert made.topic_id == client.broker.metadata.image.topics["t"].topic_id

    run(scenario)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new_topic("t", 0), ErrorCode.invalid_partitions),
        (new_topic("t", -2), ErrorCode.invalid_partitions),
        (new_topic("t", 2**31 - 1), ErrorCode.invalid_partitions),
        (new_topic("t", 1, 0), ErrorCode.invalid_replication_factor),
        (new_topic("t", 1, 99), ErrorCode.invalid_replication_factor),
        (
            new_topic("t", -1, -1, assignments=[Struct(partition_index=0, broker_ids=[1, 1])]),
            ErrorCode.invalid_replica_assignment,
        ),
        (
            new_topic("t", -1, -1, assignments=[Struct(partition_index=0, broker_ids=[7])]),
            ErrorCode.invalid_replica_assignment,
        ),
        (new_topic("t", configs=[Struct(name="no.such", value="1")]), ErrorCode.invalid_config),
        (new_topic("t", configs=[Struct(name="retention.ms", value="-9")]), ErrorCode.invalid_config),
        (new_topic("t", configs=[Struct(name="retention.ms", value=None)]), ErrorCode.invalid_config),
        *((new_topic(name), ErrorCode.invalid_topic_exception) for name in ILLEGAL_NAMES),
    ],
)
def test_topics_that_cannot_be(run: Run, topic: Struct, code: ErrorCode, tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        reply = await client.call(ApiKey.CREATE_TOPICS, topics=[topic])
        assert [(item.name, item.error_code) for item in reply.topics] == [(topic.name, code)]
        assert reply.topics[0].error_message
        assert list(client.broker.partitions) == []

    run(scenario)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_create_topics_that_only_validates(run: Run) -> None:
    async def scenario(client: Client) -> None:
        reply = await client.call(ApiKey.CREATE_TOPICS, topics=[new_topic("t", -1, -1)], validate_only=True)
        made = reply.topics[0]
        assert (made.error_code, made.num_partitions, made.replication_factor) == (ErrorCode.none, 1, 1)
        assert made.topic_id is None
        assert list(client.broker.partitions) == []

    run(scenario)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DELETE_TOPICS))
def test_delete_topics_in_every_version(run: Run, key: ApiKey, version: int) -> None:
    async def scenario(client: Client) -> None:
        for name in ("t", "u"):
            await client.create(name)
        known = client.broker.metadata.image.topics["u"].topic_id
        topics = [Struct(name=name, topic_id=ZERO_UUID) for name in ("t", "none", "a/b")]
        topics += [Struct(name=None, topic_id=topic_id) for topic_id in (known, UUID(int=9), ZERO_UUID)]
        reply = await client.call(key, version, topics=topics, topic_names=["t", "none", "a/b"], timeout_ms=1000)
        answers = [(item.name, item.error_code) for item in reply.responses]
        expected = [
            ("t", ErrorCode.none),
            ("none", ErrorCode.unknown_topic_or_partition),
            ("a/b", ErrorCode.invalid_topic_exception),
        ]
        if version >= 6:
            expected += [
                ("u", ErrorCode.none),
                (None, ErrorCode.unknown_topic_id),
                (None, ErrorCode.invalid_request),
            ]
            assert [item.topic_id for item in reply.responses][3:] == [known, UUID(int=9), None]
        assert answers == expected
        assert len(list(client.broker.partitions)) == (0 if version >= 6 else 1)

    run(scenario)


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.invalid_request), (6, ErrorCode.topic_deletion_disabled)])
def test_deletion_that_is_disabled(run: Run, version: int, code: ErrorCode) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        topics = [Struct(name="t", topic_id=ZERO_UUID)]
        reply = await client.call(ApiKey.DELETE_TOPICS, version, topics=topics, topic_names=["t"], timeout_ms=1000)
        assert [item.error_code for item in reply.responses] == [code]
        assert len(list(client.broker.partitions)) == 1

    run(scenario, delete_topic_enable="false")


def test_stored_settings_that_this_version_cannot_use(run: Run) -> None:
    """They are left out, of what is in force and of what is shown, and can be deleted."""

    async def scenario(client: Client) -> None:
        await client.create("t", retention_ms="5")
        stored = {
            topic_config_key("t"): {"retention.ms": "5", "segment.bytes": "huge", "remote.tier": "s3"},
            broker_config_key(ALL_BROKERS): {"max.connection.creation.rate": "fast", "num.partitions": "2", "a.b": "c"},
        }
        store = client.broker.metadata._store
        revision = await store.commit((), [Put(key, encode(value)) for key, value in stored.items()])
        await client.broker.metadata.applied(revision)

        assert (await client.metadata("new", auto_create=True)).topics[0].error_code == ErrorCode.none
        assert len(client.broker.metadata.image.topics["new"].partitions) == 2
        shown = {item.name: item for item in (await client.describe_configs(TOPIC, "t")).configs}
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5", 1)
        assert (shown["segment.bytes"].value, shown["segment.bytes"].config_source) == (str(1 << 30), 5)
        shown = {item.name: item for item in (await client.describe_configs(BROKER, "1")).configs}
        assert (shown["num.partitions"].value, shown["num.partitions"].config_source) == ("2", 3)
        assert shown["max.connection.creation.rate"].config_source == 5
        everyone = (await client.describe_configs(BROKER, "")).configs
        assert [item.name for item in everyone] == ["max.connection.creation.rate", "num.partitions"]

        # No other setting can be changed until they are gone: the answer names them.
        refused = await client.alter(TOPIC, "t", ("retention.ms", SET, "6"))
        assert refused.error_code == ErrorCode.invalid_config
        deleted = await client.alter(TOPIC, "t", ("segment.bytes", DELETE, None), ("remote.tier", DELETE, None))
        assert deleted.error_code == ErrorCode.none
        assert client.broker.metadata.image.topics["t"].config == {"retention.ms": "5"}
        rate = "max.connection.creation.rate"
        assert (await client.alter(BROKER, "", (rate, DELETE, None), ("a.b", DELETE, None))).error_code == 0
        topics = [Struct(name="t", topic_id=ZERO_UUID)]
        (gone,) = (await client.call(ApiKey.DELETE_TOPICS, topics=topics, timeout_ms=1000)).responses
        assert gone.error_code == ErrorCode.none

    run(scenario)


def test_a_topic_deleted_and_made_anew_is_another_one(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 2, retention_ms="5")
        first = client.broker.metadata.image.topics["t"].topic_id
        await client.call(ApiKey.DELETE_TOPICS, topics=[Struct(name="t", topic_id=ZERO_UUID)], timeout_ms=1000)
        await client.create("t")
        topic = client.broker.metadata.image.topics["t"]
        assert topic.topic_id != first
        assert (topic.config, len(topic.partitions)) == ({}, 1)

    run(scenario)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CREATE_PARTITIONS))
def test_create_partitions_in_every_version(run: Run, key: ApiKey, version: int) -> None:
    async def scenario(client: Client) -> None:
        for name in ("t", "u", "v"):
            await client.create(name)
        reply = await client.call(
            key,
            version,
            topics=[
                Struct(name="t", count=3, assignments=None),
                Struct(name="u", count=2, assignments=[Struct(broker_ids=[1])]),
                Struct(name="v", count=1, assignments=None),
                Struct(name="none", count=2, assignments=None),
            ],
            timeout_ms=1000,
            validate_only=False,
        )
        assert [(item.name, item.error_code) for item in reply.results] == [
            ("t", ErrorCode.none),
            ("u", ErrorCode.none),
            ("v", ErrorCode.invalid_partitions),
            ("none", ErrorCode.unknown_topic_or_partition),
        ]
        assert len(list(client.broker.partitions)) == 6

    run(scenario)


# Configs


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_CONFIGS))
def test_describe_configs_in_every_version(run: Run, key: ApiKey, version: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", retention_ms="5")
        wanted = [
            (TOPIC, "t"),
            (BROKER, "1"),
            (TOPIC, "u"),
            (TOPIC, "a/b"),
            (BROKER, "2"),
            (BROKER_LOGGER, "1"),
            (99, ""),
        ]
        reply = await client.call(
            key,
            version,
            resources=[Struct(resource_type=t, resource_name=n, configuration_keys=None) for t, n in wanted],
            include_synonyms=True,
            include_documentation=True,
        )
        assert [(item.resource_type, item.resource_name) for item in reply.results] == wanted
        assert [item.error_code for item in reply.results] == [
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.invalid_topic_exception,
            ErrorCode.invalid_request,
            ErrorCode.invalid_request,
            ErrorCode.invalid_request,
        ]
        topic, broker = reply.results[:2]
        assert {config.name for config in topic.configs} == TOPIC_CONFIGS.keys()
        assert {config.name for config in broker.configs} == BROKER_CONFIGS.keys() | BROKER_SYNONYMS.keys()
        retention = next(config for config in topic.configs if config.name == "retention.ms")
        assert (retention.value, retention.config_source, retention.is_sensitive) == ("5", 1, False)
        assert [(item.name, item.value, item.source) for item in retention.synonyms] == [
            ("retention.ms", "5", 1),
            ("log.retention.hours", "48", 4),
            ("log.retention.ms", "1209600000", 5),
        ]
        if version >= 3:
            assert retention.config_type == 5
            assert retention.documentation

    run(scenario, log_retention_hours="48")


def test_described_values_are_those_in_force(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        result = await client.describe_configs(TOPIC, "t", "retention.ms", "segment.bytes", "no.such")
        assert {config.name: (config.value, config.config_source) for config in result.configs} == {
            "retention.ms": ("172800000", 4),
            "segment.bytes": ("1073741824", 5),
        }
        assert all(config.synonyms == () and config.documentation is None for config in result.configs)
        result = await client.describe_configs(BROKER, "1", "log.retention.ms", "log.retention.hours", "listeners")
        assert {config.name: (config.value, config.config_source, config.read_only) for config in result.configs} == {
            "log.retention.ms": ("172800000", 5, False),
            "log.retention.hours": ("48", 4, True),
            "listeners": ("PLAINTEXT://localhost:0", 4, True),
        }
        # What the broker chose itself is shown as it is, not as it was left open.
        result = await client.describe_configs(BROKER, "1", "advertised.listeners", "cluster.id")
        assert {config.name: config.value for config in result.configs} == {
            "advertised.listeners": f"PLAINTEXT://localhost:{client.broker.listener.port}",
            "cluster.id": client.broker.metadata.image.cluster_id,
        }

    run(scenario, log_retention_hours="48")


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_alter_configs_in_every_version(run: Run, key: ApiKey, version: int) -> None:
    async def scenario(client: Client) -> None:
        for name in ("t", "u"):
            await client.create(name, segment_ms="9")

        def resource(name: str, value: str) -> Struct:
            operation = {"config_operation": SET} if key is ApiKey.INCREMENTAL_ALTER_CONFIGS else {}
            config = Struct(name="retention.ms", value=value, **operation)
            return Struct(resource_type=TOPIC, resource_name=name, configs=[config])

        reply = await client.call(
            key, version, resources=[resource("t", "5"), resource("u", "x"), resource("v", "5")], validate_only=False
        )
        assert [(item.resource_type, item.resource_name, item.error_code) for item in reply.responses] == [
            (TOPIC, "t", ErrorCode.none),
            (TOPIC, "u", ErrorCode.invalid_config),
            (TOPIC, "v", ErrorCode.unknown_topic_or_partition),
        ]
        image = client.broker.metadata.image
        kept = {"segment.ms": "9"} if key is ApiKey.INCREMENTAL_ALTER_CONFIGS else {}
        assert image.topics["t"].config == {"retention.ms": "5"} | kept
        assert image.topics["u"].config == {"segment.ms": "9"}
        partition = client.broker.partitions.get("t", 0)
        assert partition.log.config.retention_ms == 5

    run(scenario)


def test_alter_configs_that_only_validates(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        for key, operation in (
            (ApiKey.ALTER_CONFIGS, {}),
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, {"config_operation": SET}),
        ):
            config = Struct(name="retention.ms", value="5", **operation)
            resource = Struct(resource_type=TOPIC, resource_name="t", configs=[config])
            reply = await client.call(key, resources=[resource], validate_only=True)
            assert reply.responses[0].error_code == ErrorCode.none
        assert client.broker.metadata.image.topics["t"].config == {}

    run(scenario)


@pytest.mark.parametrize("value", ["${file:/etc/passwd}", "$(id)", "{{7*7}}", "__import__('os').system('id')"])
def test_values_that_look_like_code_are_text(run: Run, value: str) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        answer = await client.alter(TOPIC, "t", ("compression.type", SET, value))
        assert answer.error_code == ErrorCode.invalid_config
        assert value in answer.error_message.replace("\\'", "'")

    run(scenario)


def test_lists_grow_and_shrink(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        assert (await client.alter(TOPIC, "t", ("cleanup.policy", APPEND, "compact"))).error_code == ErrorCode.none
        result = await client.describe_configs(TOPIC, "t", "cleanup.policy")
        assert (result.configs[0].value, result.configs[0].config_type) == ("delete,compact", 7)

    run(scenario)


def test_broker_settings_that_change_at_run_time(run: Run) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.alter(BROKER, "", ("num.partitions", SET, "2"))).error_code == ErrorCode.none
        assert (await client.alter(BROKER, "1", ("num.partitions", SET, "3"))).error_code == ErrorCode.none
        assert len((await client.metadata("t", auto_create=True)).topics[0].partitions) == 3
        result = await client.describe_configs(BROKER, "1", "num.partitions", include_synonyms=True)
        config = result.configs[0]
        assert (config.value, config.config_source, config.read_only) == ("3", 2, False)
        assert [(item.value, item.source) for item in config.synonyms] == [("3", 2), ("2", 3), ("1", 5)]
        defaults = await client.describe_configs(BROKER, "")
        assert [(item.name, item.value, item.config_source) for item in defaults.configs] == [
            ("num.partitions", "2", 3)
        ]
        assert (await client.alter(BROKER, "1", ("num.partitions", DELETE, None))).error_code == ErrorCode.none
        assert len((await client.metadata("u", auto_create=True)).topics[0].partitions) == 2

    run(scenario)


def test_defaults_of_topics_that_change_at_run_time_reach_their_partitions(run: Run) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        await client.create("own", retention_ms="9")
        configs = [client.broker.partitions.get(name, 0).log for name in ("t", "own")]
        assert (await client.alter(BROKER, "1", ("log.retention.ms", SET, "7"))).error_code == ErrorCode.none
        assert [partition_log.config.retention_ms for partition_log in configs] == [7, 9]
        result = await client.describe_configs(TOPIC, "t", "retention.ms", include_synonyms=True)
        assert (result.configs[0].value, result.configs[0].config_source) == ("7", 2)
        assert (await client.alter(BROKER, "1", ("log.retention.ms", DELETE, None))).error_code == ErrorCode.none
        assert [partition_log.config.retention_ms for partition_log in configs] == [14 * 86_400_000, 9]
        refused = await client.alter(BROKER, "1", ("log.flush.interval.ms", SET, "7"))
        assert refused.error_code == ErrorCode.invalid_request

    run(scenario)


def test_broker_settings_that_do_not_are_refused_with_a_reason(run: Run) -> None:
    async def scenario(client: Client) -> None:
        for name in ("listeners", "log.dirs", "no.such"):
            answer = await client.alter(BROKER, "1", (name, SET, "x"))
            assert answer.error_code == ErrorCode.invalid_request
            assert "cannot be changed at run time" in answer.error_message

    run(scenario)


# Log directories


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_describe_log_dirs_in_every_version(run: Run, key: ApiKey, version: int, tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 2)
        await client.create("u")
        reply = await client.call(key, version, topics=None)
        result = reply.results[0]
        assert result.error_code == ErrorCode.none
        assert Path(result.log_dir) == tmp_path / "data"
        sizes = {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}
        assert sizes == {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}
        if version >= 4:
            assert 0 < result.usable_bytes <= result.total_bytes
        some = await client.call(
            key, version, topics=[Struct(topic="t", partitions=[1, 7]), Struct(topic="x", partitions=[0])]
        )
        assert [(t.name, [p.partition_index for p in t.partitions]) for t in some.results[0].topics] == [("t", [1])]

    run(scenario)


def test_hostile_names_in_every_admin_api_leave_the_broker_alive(run: Run, tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        for name in ["\x1b[31m", "a\r\nb", "<script>", "x" * 30_000, *ILLEGAL_NAMES]:
            codes = [
                (await client.call(ApiKey.CREATE_TOPICS, topics=[new_topic(name)])).topics[0].error_code,
                (await client.call(ApiKey.DELETE_TOPICS, topics=[Struct(name=name, topic_id=ZERO_UUID)], timeout_ms=1))
                .responses[0]
                .error_code,
                (
                    await client.call(
                        ApiKey.CREATE_PARTITIONS,
                        topics=[Struct(name=name, count=2, assignments=None)],
                        timeout_ms=1,
                        validate_only=False,
                    )
                )
                .results[0]
                .error_code,
                (await client.metadata(name, auto_create=True)).topics[0].error_code,
                (await client.describe_configs(TOPIC, name)).error_code,
                (await client.alter(TOPIC, name, ("retention.ms", SET, "1"))).error_code,
            ]
            assert set(codes) == {ErrorCode.invalid_topic_exception}
        assert (await client.metadata()).brokers

    run(scenario)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
