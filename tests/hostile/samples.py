"""A well-formed request for every served API in every version."""

from typing import Any
from uuid import UUID

from penstock.server import handlers
from penstock.server.api import APIS, ApiKey
from penstock.wire.codec import ZERO_UUID, Struct, _fields
from penstock.wire.schema_table import MESSAGES

from .client import batch_of, fetch_fields, produce_fields

handlers.register_all()

SERVED = [(key, version) for key in sorted(APIS) for version in APIS[key].versions]
SERVED_IDS = [f"{APIS[key].key.name}-v{version}" for key, version in SERVED]


SOME_ID = UUID(int=7)


def sample(key: int, version: int, topic: str = "samples", topic_id: UUID = SOME_ID) -> Struct:
    """A request that touches every array once, and changes nothing but the topic's records.

    For an API that has no sample here, one that is well-formed and makes no sense.
    """
    if key not in _SAMPLES:
        return _senseless(_fields(MESSAGES[key][2]), version)
    fields: dict[str, Any] = _SAMPLES[ApiKey(key)](topic, topic_id)
    by_id = (key, version >= 13) in ((ApiKey.PRODUCE, True), (ApiKey.FETCH, True))
    if by_id:
        for entry in (*fields.get("topics", ()), *fields.get("topic_data", ())):
            entry.topic_id = topic_id
    if key == ApiKey.METADATA and version < 10:
        fields["topics"] = [Struct(name=topic)]
    return Struct(**fields)


def makes_sense(key: int) -> bool:
    return key in _SAMPLES


def _senseless(fields: Any, version: int) -> Struct:
    """Every field that the version has: numbers are 1, arrays have one element, nothing is null."""
    values = {}
    for field in fields:
        if version in field.versions or version in field.tagged_versions:
            value = _senseless(field.fields, version) if field.type == "struct" else _VALUES.get(field.type, 1)
            values[field.name] = [value] if field.is_array else value
    return Struct(**values)


_VALUES: dict[str, Any] = {"string": "x", "bytes": b"x", "records": b"x", "bool": True, "uuid": SOME_ID, "float64": 1.0}


def _partition(**fields: Any) -> list[Struct]:
    return [Struct(partition_index=0, **fields)]


_SAMPLES = {
    ApiKey.PRODUCE: lambda topic, _: produce_fields([(topic, 0, batch_of(b"one", b"two"))], timeout_ms=1000),
    ApiKey.FETCH: lambda topic, topic_id: {
        **fetch_fields([(topic, 0, 0)]),
        "cluster_id": "cluster",
        "rack_id": "rack",
        "forgotten_topics_data": [Struct(topic="gone", topic_id=topic_id, partitions=[1, 2])],
    },
    ApiKey.LIST_OFFSETS: lambda topic, _: {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [Struct(name=topic, partitions=_partition(timestamp=-1))],
        "timeout_ms": 1000,
    },
    ApiKey.METADATA: lambda topic, topic_id: {
        "topics": [Struct(topic_id=ZERO_UUID, name=topic)],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    },
    ApiKey.SASL_HANDSHAKE: lambda *_: {"mechanism": "PLAIN"},
    ApiKey.SASL_AUTHENTICATE: lambda *_: {"auth_bytes": b"\0admin\0secret"},
    ApiKey.API_VERSIONS: lambda *_: {"client_software_name": "hostile", "client_software_version": "1.0"},
    ApiKey.CREATE_TOPICS: lambda *_: {
        "topics": [
            Struct(
                name="sample",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[Struct(partition_index=0, broker_ids=[1])],
                configs=[Struct(name="retention.ms", value="1000")],
            )
        ],
        "timeout_ms": 1000,
        "validate_only": True,
    },
    ApiKey.DELETE_TOPICS: lambda *_: {
        "topic_names": ["no-such-topic"],
        "topics": [Struct(name="no-such-topic", topic_id=ZERO_UUID)],
        "timeout_ms": 1000,
    },
    ApiKey.DELETE_RECORDS: lambda topic, _: {
        "topics": [Struct(name=topic, partitions=_partition(offset=0))],
        "timeout_ms": 1000,
    },
    ApiKey.INIT_PRODUCER_ID: lambda *_: {"transactional_id": None, "transaction_timeout_ms": 1000},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda topic, _: {
        "topics": [Struct(topic=topic, partitions=[Struct(partition=0, leader_epoch=0)])]
    },
    ApiKey.DESCRIBE_CONFIGS: lambda topic, _: {
        "resources": [
            Struct(resource_type=2, resource_name=topic, configuration_keys=["retention.ms"]),
            Struct(resource_type=4, resource_name="1", configuration_keys=None),
        ],
        "include_synonyms": True,
        "include_documentation": True,
    },
    ApiKey.ALTER_CONFIGS: lambda topic, _: {
        "resources": [
            Struct(resource_type=2, resource_name=topic, configs=[Struct(name="retention.ms", value="86400000")])
        ],
        "validate_only": True,
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda topic, _: {
        "dirs": [Struct(path="/etc", topics=[Struct(name=topic, partitions=[0])])]
    },
    ApiKey.ELECT_LEADERS: lambda topic, _: {
        "election_type": 0,
        "topic_partitions": [Struct(topic=topic, partitions=[0])],
        "timeout_ms": 1000,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda topic, _: {
        "timeout_ms": 1000,
        "allow_replication_factor_change": True,
        "topics": [Struct(name=topic, partitions=_partition(replicas=[1]))],
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda topic, _: {
        "timeout_ms": 1000,
        "topics": [Struct(name=topic, partition_indexes=[0])],
    },
    ApiKey.DESCRIBE_LOG_DIRS: lambda topic, _: {"topics": [Struct(topic=topic, partitions=[0, 1])]},
    ApiKey.CREATE_PARTITIONS: lambda topic, _: {
        "topics": [Struct(name=topic, count=2, assignments=[Struct(broker_ids=[1])])],
        "timeout_ms": 1000,
        "validate_only": True,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda topic, _: {
        "resources": [
            Struct(
                resource_type=2,
                resource_name=topic,
                configs=[Struct(name="retention.ms", config_operation=0, value="86400000")],
            )
        ],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda *_: {
        "components": [Struct(entity_type="client-id", match_type=0, match="somebody")],
        "strict": True,
    },
    ApiKey.ALTER_CLIENT_QUOTAS: lambda *_: {
        "entries": [
            Struct(
                entity=[Struct(entity_type="client-id", entity_name="somebody")],
                ops=[Struct(key="producer_byte_rate", value=1e15, remove=False)],
            )
        ],
        "validate_only": True,
    },
    ApiKey.ALTER_PARTITION: lambda _, topic_id: {
        "broker_id": 1,
        "broker_epoch": 1,
        "topics": [
            Struct(
                topic_id=topic_id,
                partitions=_partition(
                    leader_epoch=0,
                    new_isr=[1],
                    new_isr_with_epochs=[Struct(broker_id=1, broker_epoch=1)],
                    leader_recovery_state=0,
                    partition_epoch=0,
                ),
            )
        ],
    },
    ApiKey.ENVELOPE: lambda *_: {
        "request_data": b"\0\x13\0\7\0\0\0\1\xff\xff\0\1\0\0\3\xe8\0\0",  # CreateTopics v7 of no topic.
        "request_principal": b"User:admin",
        "client_host_address": b"\x7f\0\0\1",
    },
    ApiKey.DESCRIBE_CLUSTER: lambda *_: {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": True,
    },
    ApiKey.DESCRIBE_PRODUCERS: lambda topic, _: {"topics": [Struct(name=topic, partition_indexes=[0])]},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda topic, _: {
        "topics": [Struct(name=topic)],
        "cursor": Struct(topic_name=topic, partition_index=0),
    },
}
