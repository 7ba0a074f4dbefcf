"""S12 topic names, S13 counts, assignments and settings. No name touches a file outside the data directory."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.errors import ErrorCode
from penstock.server.api import APIS, ApiKey
from penstock.wire.codec import Struct

from .broker_process import BrokerProcess
from .client import Client, batch_of

ILLEGAL_NAMES = [
    "", ".", "..", "../../etc/x", "a/b", "/etc/passwd", "a\0b", "x" * 250, "é", "a b", "a\n", "a:b", "%2e%2e",
]  # fmt: skip
NAME_IDS = [ascii(name)[:20] for name in ILLEGAL_NAMES]


def files_outside(broker: BrokerProcess) -> set[Path]:
    """What lies beside the data directory, and where the names above would lead."""
    beside = {
        *broker.directory.iterdir(),
        *broker.directory.parent.iterdir(),
        *broker.directory.parent.parent.iterdir(),
    }
    names = [Path(f"{name}{end}") for name in ("/etc/x", "/etc/passwd") for end in ("-0", "-delete")]
    return beside | {path for path in names if path.exists()}


def topic_directories(broker: BrokerProcess) -> set[str]:
    # Checkpoints come and go in the background, and so do the remains of deleted topics.
    return {path.name for path in broker.data.iterdir() if path.is_dir() and not path.name.endswith("-delete")}


@pytest.fixture(autouse=True)
def nothing_touched(broker: BrokerProcess) -> Iterator[None]:
    before = files_outside(broker)
    yield
    assert files_outside(broker) == before


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=NAME_IDS)
@pytest.mark.parametrize("version", APIS[ApiKey.CREATE_TOPICS].versions)
def test_s12_an_illegal_name_cannot_be_created(broker: BrokerProcess, client: Client, name: str, version: int) -> None:
    before = topic_directories(broker)
    entry = Struct(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    answer = client.ask(ApiKey.CREATE_TOPICS, version, topics=[entry], timeout_ms=1000, validate_only=False)
    assert answer.topics[0].error_code == ErrorCode.invalid_topic_exception
    assert topic_directories(broker) == before


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=NAME_IDS)
@pytest.mark.parametrize("version", [0, 1, 4, 9, 12, 13])
def test_s12_an_illegal_name_is_not_auto_created(
    broker: BrokerProcess, client: Client, name: str, version: int
) -> None:
    before = topic_directories(broker)
    answer = client.ask(
        ApiKey.METADATA, version, topics=[Struct(topic_id=UUID(int=0), name=name)], allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_topic_exception]
    assert topic_directories(broker) == before


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=NAME_IDS)
@pytest.mark.parametrize("version", APIS[ApiKey.DELETE_TOPICS].versions)
def test_s12_an_illegal_name_cannot_be_deleted(broker: BrokerProcess, client: Client, name: str, version: int) -> None:
    before = topic_directories(broker)
    answer = client.ask(
        ApiKey.DELETE_TOPICS,
        version,
        topic_names=[name],
        topics=[Struct(name=name, topic_id=UUID(int=0))],
        timeout_ms=1000,
    )
    assert answer.responses[0].error_code == ErrorCode.invalid_topic_exception
    assert topic_directories(broker) == before


@pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=NAME_IDS)
def test_s12_an_illegal_name_is_no_topic_anywhere(client: Client, name: str) -> None:
    refused = (ErrorCode.invalid_topic_exception, ErrorCode.unknown_topic_or_partition)
    assert client.produce(name, batch_of(b"x"))[0] in refused
    assert client.fetch(name, 0).error_code in refused
    topics = [Struct(name=name, partitions=[Struct(partition_index=0, timestamp=-1)])]
    listed = client.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    assert listed.topics[0].partitions[0].error_code in refused
    topics = [Struct(name=name, partitions=[Struct(partition_index=0, offset=-1)])]
    deleted = client.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout_ms=1000)
    assert deleted.topics[0].partitions[0].error_code in refused
    grown = client.ask(
        ApiKey.CREATE_PARTITIONS, 3, topics=[Struct(name=name, count=2, assignments=None)], timeout_ms=1,
        validate_only=False,
    )  # fmt: skip
    assert grown.results[0].error_code in refused
    resources = [Struct(resource_type=2, resource_name=name, configs=[])]
    altered = client.ask(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=False)
    assert altered.responses[0].error_code in refused
    resources = [Struct(resource_type=2, resource_name=name, configuration_keys=None)]
    assert client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources).results[0].error_code in refused
    described = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[Struct(name=name)], cursor=None)
    assert described.topics[0].error_code in refused


@pytest.mark.parametrize("name", ["x" * 249, "a.b-D9", "-", "_", "...", "-rf", "CON", "con"])
def test_s12_a_strange_but_legal_name_works(broker: BrokerProcess, client: Client, name: str) -> None:
    assert client.create_topic(name) == 0
    assert client.produce(name, batch_of(b"x")) == (0, 0)
    assert f"{name}-0" in topic_directories(broker)
    answer = client.ask(ApiKey.DELETE_TOPICS, 6, topics=[Struct(name=name, topic_id=UUID(int=0))], timeout_ms=1000)
    assert answer.responses[0].error_code == ErrorCode.none
    assert f"{name}-0" not in topic_directories(broker)


# S13 ------------------------------------------------------------------------------------------------------------------


def create(client: Client, version: int = 7, **fields: object) -> ErrorCode:
    entry = {"name": "s13", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **fields}
    answer = client.ask(ApiKey.CREATE_TOPICS, version, topics=[Struct(**entry)], timeout_ms=1000, validate_only=False)
    return ErrorCode(answer.topics[0].error_code)


@pytest.mark.parametrize("count", [0, -2, -(2**31), 10_001, 2**31 - 1])
@pytest.mark.parametrize("version", [2, 7])
def test_s13_partition_counts_out_of_range_are_refused(client: Client, count: int, version: int) -> None:
    assert create(client, version, num_partitions=count) == ErrorCode.invalid_partitions


@pytest.mark.parametrize("count", [0, -2, 1, 2**31 - 1, -(2**31)])
def test_s13_partitions_cannot_be_made_out_of_range(client: Client, topic: str, count: int) -> None:
    answer = client.ask(
        ApiKey.CREATE_PARTITIONS, 3, topics=[Struct(name=topic, count=count, assignments=None)], timeout_ms=1000,
        validate_only=False,
    )  # fmt: skip
    assert answer.results[0].error_code == ErrorCode.invalid_partitions


@pytest.mark.parametrize("factor", [0, -2, 2, 99, 32767, -32768])
def test_s13_replication_factors_out_of_range_are_refused(client: Client, factor: int) -> None:
    assert create(client, replication_factor=factor) == ErrorCode.invalid_replication_factor


@pytest.mark.parametrize(
    "assignment",
    [
        [(0, [1, 1])],
        [(0, [99])],
        [(0, [-1])],
        [(0, [])],
        [(1, [1])],
        [(-1, [1])],
        [(0, [1]), (0, [1])],
        [(0, [1]), (2, [1])],
        [(2**31 - 1, [1])],
        [(0, [2**31 - 1, -(2**31)])],
    ],
    ids=str,
)
def test_s13_assignments_that_make_no_sense_are_refused(
    client: Client, assignment: list[tuple[int, list[int]]]
) -> None:
    assignments = [Struct(partition_index=index, broker_ids=nodes) for index, nodes in assignment]
    code = create(client, num_partitions=-1, replication_factor=-1, assignments=assignments)
    assert code == ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize("nodes", [[1, 1], [99], []])
def test_s13_new_partitions_with_such_assignments_are_refused(client: Client, topic: str, nodes: list[int]) -> None:
    topics = [Struct(name=topic, count=2, assignments=[Struct(broker_ids=nodes)])]
    answer = client.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, timeout_ms=1000, validate_only=False)
    assert answer.results[0].error_code == ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no.such.setting", "1"),
        ("", ""),
        ("retention.ms", "-2"),
        ("retention.ms", "1e9"),
        ("retention.ms", "99999999999999999999"),
        ("retention.ms", "9" * 30_000),
        ("retention.ms", "\u0661"),
        ("retention.ms", None),
        ("segment.bytes", "-1"),
        ("max.message.bytes", "2147483648"),
        ("cleanup.policy", "burn"),
        ("cleanup.policy", "delete,delete"),
        ("compression.type", "brotli"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "2"),
        ("message.timestamp.type", "NoTime"),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_s13_settings_that_make_no_sense_are_refused(client: Client, topic: str, name: str, value: str | None) -> None:
    assert create(client, configs=[Struct(name=name, value=value)]) == ErrorCode.invalid_config
    configs = [Struct(name=name, value=value, config_operation=0)]
    resources = [Struct(resource_type=2, resource_name=topic, configs=configs)]
    altered = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)
    assert altered.responses[0].error_code in (ErrorCode.invalid_config, ErrorCode.invalid_request)
    assert client.produce(topic, batch_of(b"x")) == (0, 0)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_s13_clients_cannot_write_to_internal_topics(client: Client, name: str) -> None:
    answer = client.ask(ApiKey.METADATA, 4, topics=[Struct(name=name)], allow_auto_topic_creation=True)
    # Not created by asking; there once a coordinator has made it.
    assert answer.topics[0].error_code == ErrorCode.unknown_topic_or_partition or answer.topics[0].is_internal
    assert client.produce(name, batch_of(b"x"))[0] == ErrorCode.invalid_topic_exception


def test_s13_a_topic_twice_in_a_request_is_made_never(client: Client) -> None:
    entry = Struct(name="twice", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    answer = client.ask(ApiKey.CREATE_TOPICS, 7, topics=[entry, entry], timeout_ms=1000, validate_only=False)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]
