"""What the metadata store holds: the keys, laid out like ZooKeeper's tree, and the JSON behind them.

    /cluster/id                              {"id": "pS..."}
    /brokers/ids/1                           {"host": "h", "port": 9092, ...}                  under the broker's lease
    /brokers/topics/t                        {"id": "<uuid>", "replicas": [[1, 2], [2, 3]]}    by partition
    /brokers/topics/t/partitions/0/state     {"leader": 1, "leader_epoch": 0, "isr": [1], "partition_epoch": 0, ...}
    /config/topics/t                         {"retention.ms": "1000"}                          overrides only
    /config/brokers/1                        as topics; the name <default> stands for all brokers
    /config/users/u/clients/c                {"producer_byte_rate": 1024.0}                    quotas of a user's client
    /config/users/u  /config/clients/c  /config/ips/10.0.0.1                                   as that; also <default>
    /controller                              {"node": 1}                                       under the broker's lease
    /controller_epoch                        {"epoch": 7}
    /latest_producer_id_block                {"next": 3000}                                    first id not handed out

Topic names have no slash, and those of users and clients are percent-encoded, so a key has one meaning.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from penstock.base.types import LeaderEpoch, NodeId
from penstock.cluster.quota_entity import DEFAULT, QuotaEntity

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
PRODUCER_IDS = "/latest_producer_id_block"
BROKERS = "/brokers/ids/"
TOPICS = "/brokers/topics/"
TOPIC_CONFIGS = "/config/topics/"
BROKER_CONFIGS = "/config/brokers/"
ALL_BROKERS = "<default>"
USER_QUOTAS = "/config/users/"
CLIENT_QUOTAS = "/config/clients/"
IP_QUOTAS = "/config/ips/"
QUOTAS = (USER_QUOTAS, CLIENT_QUOTAS, IP_QUOTAS)
DEFAULT_ENTITY = "<default>"  # Percent-encoded names have no such characters.


def broker_key(node_id: NodeId) -> str:
    return f"{BROKERS}{node_id}"


def topic_key(name: str) -> str:
    return f"{TOPICS}{name}"


def partition_state_key(name: str, partition: int) -> str:
    return f"{TOPICS}{name}/partitions/{partition}/state"


def topic_config_key(name: str) -> str:
    return f"{TOPIC_CONFIGS}{name}"


def broker_config_key(name: str) -> str:
    return f"{BROKER_CONFIGS}{name}"


def quota_key(entity: QuotaEntity) -> str:
    if entity.ip is not None:
        return f"{IP_QUOTAS}{_encoded(entity.ip)}"
    if entity.user is None:
        assert entity.client_id is not None, "an entity has a part"
        return f"{CLIENT_QUOTAS}{_encoded(entity.client_id)}"
    user = f"{USER_QUOTAS}{_encoded(entity.user)}"
    return user if entity.client_id is None else f"{user}/clients/{_encoded(entity.client_id)}"


def parse_quota_key(key: str) -> QuotaEntity:
    if key.startswith(IP_QUOTAS):
        return QuotaEntity(ip=_decoded(key.removeprefix(IP_QUOTAS)))
    if key.startswith(CLIENT_QUOTAS):
        return QuotaEntity(client_id=_decoded(key.removeprefix(CLIENT_QUOTAS)))
    user, _, client_id = key.removeprefix(USER_QUOTAS).partition("/clients/")
    return QuotaEntity(_decoded(user), _decoded(client_id) if client_id else None)


def _encoded(name: str) -> str:
    if name in (".", ".."):  # ZooKeeper has no such nodes.
        return name.replace(".", "%2E")
    return DEFAULT_ENTITY if name == DEFAULT else quote(name, safe="")


def _decoded(text: str) -> str:
    return DEFAULT if text == DEFAULT_ENTITY else unquote(text)


class PartitionKey(NamedTuple):
    topic: str
    partition: int


def parse_topic_path(key: str) -> str | PartitionKey:
    """Whose key this is: a topic's own (its name), or one of its partition states."""
    name, _, rest = key.removeprefix(TOPICS).partition("/")
    return PartitionKey(name, int(rest.split("/")[1])) if rest else name


class TopicRecord(NamedTuple):
    topic_id: UUID
    # By partition, the preferred leader first: those that it was made with. A state that has replicas knows better.
    replicas: tuple[tuple[NodeId, ...], ...]


class PartitionStateRecord(NamedTuple):
    """See PartitionState in image.py."""

    leader: NodeId
    leader_epoch: LeaderEpoch
    isr: tuple[NodeId, ...]
    partition_epoch: int
    isr_epochs: tuple[int, ...] = ()
    replicas: tuple[NodeId, ...] = ()  # Empty: written by a version that kept them in the topic's record alone.
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()
    is_recovering: bool = False


class BrokerRecord(NamedTuple):
    host: str
    port: int
    rack: str | None
    secret: str = ""  # By which other brokers know that a connection is this broker's; clients never see the store.
    is_stopping: bool = False  # About to stop: it shall lead nothing and be in sync with nothing.


_STATE_DEFAULTS = PartitionStateRecord._field_defaults
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)  # Sorted: the same value has the same bytes.


def encode(value: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode()


def decode(value: bytes) -> dict[str, Any]:
    fields = json.loads(value)
    assert isinstance(fields, dict), f"not an object: {value!r}"
    return fields


def encode_topic(record: TopicRecord) -> bytes:
    return encode({"id": str(record.topic_id), "replicas": record.replicas})


def decode_topic(value: bytes) -> TopicRecord:
    fields = decode(value)
    return TopicRecord(UUID(fields["id"]), tuple(_nodes(replicas) for replicas in fields["replicas"]))


def encode_partition_state(record: PartitionStateRecord) -> bytes:
    return encode({name: value for name, value in record._asdict().items() if value != _STATE_DEFAULTS.get(name)})


def decode_partition_state(value: bytes) -> PartitionStateRecord:
    fields = decode(value)
    return PartitionStateRecord(
        leader=NodeId(fields["leader"]),
        leader_epoch=LeaderEpoch(fields["leader_epoch"]),
        isr=_nodes(fields["isr"]),
        partition_epoch=fields["partition_epoch"],
        isr_epochs=tuple(fields.get("isr_epochs", ())),
        replicas=_nodes(fields.get("replicas", ())),
        adding=_nodes(fields.get("adding", ())),
        removing=_nodes(fields.get("removing", ())),
        is_recovering=fields.get("is_recovering", False),
    )


def encode_broker(record: BrokerRecord) -> bytes:
    return encode(record._asdict())


def decode_broker(value: bytes) -> BrokerRecord:
    return BrokerRecord(**decode(value))


def decode_config(value: bytes) -> dict[str, str]:
    return decode(value)


def decode_quotas(value: bytes) -> dict[str, float]:
    return decode(value)


def _nodes(ids: Sequence[int]) -> tuple[NodeId, ...]:
    return tuple(NodeId(node_id) for node_id in ids)
