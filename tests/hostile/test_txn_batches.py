"""S10, S15 and rule 15: batches of transactions that are others' or over, and markers of who may not write them."""

import itertools
import time
from typing import NamedTuple

import pytest

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.batch import TRANSACTIONAL_MASK
from penstock.wire.codec import Struct

from .client import TIMEOUT_S, Client, batch_of, produce_fields

_numbers = itertools.count()

PASSING = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_enough_replicas,
)


class Producer(NamedTuple):
    client: Client
    topic: str
    transactional_id: str
    producer_id: int
    epoch: int

    def send(self, sequence: int, *, version: int, **fields: int) -> int:
        """The error code of one batch."""
        batch = batch_of(
            b"x",
            attributes=TRANSACTIONAL_MASK,
            producer_id=fields.get("producer_id", self.producer_id),
            producer_epoch=fields.get("epoch", self.epoch),
            base_sequence=sequence,
        )
        asked = {**produce_fields([(self.topic, 0, batch)]), "transactional_id": self.transactional_id}
        answer = ask_until_settled(
            lambda: self.client.ask(ApiKey.PRODUCE, version, **asked).responses[0].partition_responses[0]
        )
        return int(answer.error_code)

    def add_partition(self) -> int:
        answer = ask_until_settled(
            lambda: (
                self.client.ask(
                    ApiKey.ADD_PARTITIONS_TO_TXN,
                    3,
                    v3_and_below_transactional_id=self.transactional_id,
                    v3_and_below_producer_id=self.producer_id,
                    v3_and_below_producer_epoch=self.epoch,
                    v3_and_below_topics=[Struct(name=self.topic, partitions=[0])],
                )
                .results_by_topic_v3_and_below[0]
                .results_by_partition[0]
            ),
            "partition_error_code",
        )
        return int(answer.partition_error_code)

    def end(self, *, version: int) -> "Producer":
        """Commit; the producer as it goes on."""
        answer = ask_until_settled(
            lambda: self.client.ask(
                ApiKey.END_TXN,
                version,
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=True,
            )
        )
        assert answer.error_code == 0
        return self._replace(epoch=answer.producer_epoch) if version >= 5 else self

    def stable(self) -> tuple[int, int]:
        """Last stable offset and high watermark."""
        found = self.client.fetch(self.topic, 0)
        return int(found.last_stable_offset), int(found.high_watermark)

    def wait_until_decided(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(set(self.stable())) > 1:
            assert time.monotonic() < deadline, f"a transaction hangs: {self.stable()}"
            time.sleep(0.02)


def ask_until_settled(ask, field: str = "error_code"):  # type: ignore[no-untyped-def]
    """The first answer that does not say to ask again."""
    deadline = time.monotonic() + TIMEOUT_S
    while getattr(answer := ask(), field) in PASSING:
        assert time.monotonic() < deadline, "the coordinator is never ready"
        time.sleep(0.02)
    return answer


def begin(client: Client, topic: str) -> Producer:
    name = f"transactional-{next(_numbers)}"
    ask_until_settled(
        lambda: client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[name]).coordinators[0]
    )
    answer = ask_until_settled(
        lambda: client.ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
    )
    assert answer.error_code == 0
    return Producer(client, topic, name, answer.producer_id, answer.producer_epoch)


@pytest.fixture
def producer(client: Client, topic: str) -> Producer:
    return begin(client, topic)


@pytest.mark.parametrize("version", [9, 12])
def test_s10_a_producer_id_of_somebody_else(producer: Producer, version: int) -> None:
    other = begin(producer.client, producer.topic)
    assert producer.send(0, version=version, producer_id=other.producer_id) == ErrorCode.invalid_producer_id_mapping
    assert producer.send(0, version=version, epoch=7) == ErrorCode.invalid_producer_epoch
    assert producer.client.log_end(producer.topic) == 0


def test_rule_15_a_batch_behind_the_end_of_its_transaction(producer: Producer) -> None:
    assert producer.send(0, version=9) == ErrorCode.invalid_txn_state  # It was never added.
    assert producer.add_partition() == 0
    assert producer.send(0, version=9) == 0
    producer.end(version=3)
    producer.wait_until_decided()
    for version in (9, 11):
        code = producer.send(1, version=version)
        assert code == (ErrorCode.invalid_txn_state if version == 9 else ErrorCode.transaction_abortable)
    assert producer.stable() == (2, 2)


def test_rule_15_a_batch_of_the_epoch_before(producer: Producer) -> None:
    assert producer.send(0, version=12) == 0
    following = producer.end(version=5)
    assert following.epoch == producer.epoch + 1
    producer.wait_until_decided()
    assert producer.send(1, version=12) == ErrorCode.invalid_producer_epoch
    assert following.send(1, version=12) == ErrorCode.out_of_order_sequence_number
    assert following.stable() == (2, 2)
    assert following.send(0, version=12) == 0
    assert following.stable() == (2, 3)
    following.end(version=5)
    following.wait_until_decided()


def test_s15_a_client_cannot_commit_for_others(producer: Producer) -> None:
    assert producer.send(0, version=12) == 0
    marker = Struct(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=True,
        topics=[Struct(name=producer.topic, partition_indexes=[0])],
        coordinator_epoch=0,
    )
    answer = producer.client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
    code = answer.markers[0].topics[0].partitions[0].error_code
    assert code == ErrorCode.cluster_authorization_failed
    assert producer.stable() == (0, 1)
    producer.end(version=5)
    producer.wait_until_decided()
