"""S15: transactional ids that are nobody's or somebody else's, and requests that only brokers may send."""

import itertools
import time
from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

from .client import Client

PATIENCE_S = 30
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _coordinator(client: Client) -> None:
    """Have the coordinator's topic made."""
    _ready(lambda: client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["any"]).coordinators[0])


@pytest.fixture
def name() -> str:
    """A transactional id that nobody has used."""
    return f"hostile-{next(_numbers)}"


def _ready(ask: Any) -> Any:
    """The answer, once the coordinator is there and no longer busy."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = ask()
        if answer.error_code not in (14, 15, 16, 51) or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


def init(client: Client, name: str, **fields: Any) -> Any:
    defaults = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    return _ready(
        lambda: client.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=name, **(defaults | fields))  # type: ignore[arg-type]
    )


def add(client: Client, name: str, producer_id: int, epoch: int, topic: str, *partitions: int) -> set[int]:
    answer = client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[Struct(name=topic, partitions=list(partitions))],
    )
    return {
        int(item.partition_error_code)
        for result in answer.results_by_topic_v3_and_below
        for item in result.results_by_partition
    }


def end(client: Client, name: str, producer_id: int, epoch: int, *, version: int = 4, is_commit: bool = True) -> int:
    fields = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch, "committed": is_commit}
    return int(client.ask(ApiKey.END_TXN, version, **fields).error_code)


@pytest.mark.parametrize("timeout_ms", [-(2**31), -1, 0, 900_001, 2**31 - 1])
def test_s15_a_timeout_that_is_none_or_too_long(client: Client, name: str, timeout_ms: int) -> None:
    answer = init(client, name, transaction_timeout_ms=timeout_ms)
    assert answer.error_code == ErrorCode.invalid_transaction_timeout


@pytest.mark.parametrize(("producer_id", "epoch"), [(7, -1), (-1, 7), (-(2**63), 0), (2**63 - 1, 32_767), (-2, -2)])
def test_s15_a_producer_that_there_cannot_be(client: Client, name: str, producer_id: int, epoch: int) -> None:
    init(client, name)
    answer = init(client, name, producer_id=producer_id, producer_epoch=epoch)
    assert answer.error_code in (ErrorCode.invalid_request, ErrorCode.producer_fenced)
    assert init(client, name).error_code == 0


def test_s15_a_transaction_of_somebody_else(client: Client, name: str, topic: str) -> None:
    own = init(client, name)
    producer_id, epoch = own.producer_id, own.producer_epoch
    assert add(client, name, producer_id, epoch, topic, 0) == {0}
    for wrong in (producer_id + 1, -1, 2**63 - 1, -(2**63)):
        assert add(client, name, wrong, epoch, topic, 0) == {ErrorCode.invalid_producer_id_mapping}
        for version in (4, 5):
            assert end(client, name, wrong, epoch, version=version) == ErrorCode.invalid_producer_id_mapping
    for wrong in (epoch + 1, -1, 32_767, -32_768):
        assert add(client, name, producer_id, wrong, topic, 0) == {ErrorCode.producer_fenced}
        for version in (4, 5):
            assert end(client, name, producer_id, wrong, version=version) == ErrorCode.producer_fenced
    assert end(client, name, producer_id, epoch) == 0
    _ready(lambda: client.ask(ApiKey.END_TXN, 4, transactional_id=name, producer_id=producer_id,
                              producer_epoch=epoch, committed=True))  # fmt: skip
    assert end(client, name, producer_id, epoch) == 0
    assert end(client, name, producer_id, epoch, is_commit=False) == ErrorCode.invalid_txn_state


def test_s15_partitions_that_there_are_not(client: Client, name: str, topic: str) -> None:
    own = init(client, name)
    for partitions in ((-1,), (2**31 - 1,), (-(2**31), 5)):
        codes = add(client, name, own.producer_id, own.producer_epoch, topic, *partitions)
        assert codes == {ErrorCode.unknown_topic_or_partition}
    assert add(client, name, own.producer_id, own.producer_epoch, "../../etc", 0) == {3}
    assert end(client, name, own.producer_id, own.producer_epoch) == ErrorCode.invalid_txn_state


@pytest.mark.parametrize("name", ["", "\0", "\r\n\x1b[31m", "<script>", "ä" * 10_000, "x" * 32_767])
def test_s15_names_are_data(client: Client, name: str) -> None:
    answer = init(client, name)
    assert answer.error_code == (ErrorCode.invalid_request if not name else 0)


def test_s15_a_name_that_fits_no_record(client: Client) -> None:
    assert init(client, "x" * 40_000).error_code == ErrorCode.invalid_request


def test_s15_only_brokers_ask_for_others_and_commit(client: Client, name: str, topic: str) -> None:
    own = init(client, name)
    entry = Struct(
        transactional_id=name,
        producer_id=own.producer_id,
        producer_epoch=own.producer_epoch,
        verify_only=False,
        topics=[Struct(name=topic, partitions=[0])],
    )
    for version in (4, 5):
        answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=[entry])
        assert answer.error_code == ErrorCode.cluster_authorization_failed
    described = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[Struct(name=topic, partition_indexes=[0])])
    assert described.topics[0].partitions[0].active_producers == ()
