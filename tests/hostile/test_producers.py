"""S10: idempotent producers that skip, repeat and come back from an older life."""

from typing import NamedTuple

import pytest

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey

from .client import Client, batch_of


class Producer(NamedTuple):
    client: Client
    topic: str
    producer_id: int

    def send(self, sequence: int, *values: bytes, epoch: int = 0) -> tuple[int, int]:
        """Error code and base offset."""
        batch = batch_of(
            *(values or (b"x",)), producer_id=self.producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        return self.client.produce(self.topic, batch)


@pytest.fixture
def producer(client: Client, topic: str) -> Producer:
    answer = client.ask(
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactional_id=None,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return Producer(client, topic, answer.producer_id)


def test_s10_a_gap_in_the_sequence(producer: Producer) -> None:
    assert producer.send(0, b"a", b"b") == (0, 0)
    for sequence in (3, 100, 2**31 - 1):
        assert producer.send(sequence)[0] == ErrorCode.out_of_order_sequence_number
    assert producer.send(2) == (0, 2)
    assert producer.client.log_end(producer.topic) == 3


def test_s10_each_of_the_last_five_again_and_the_sixth(producer: Producer) -> None:
    sent = [producer.send(2 * number, b"a", b"b") for number in range(8)]
    assert sent == [(0, 2 * number) for number in range(8)]
    for number in range(3, 8):
        assert producer.send(2 * number, b"a", b"b") == (0, 2 * number), f"{7 - number} back"
    for number in range(3):
        assert producer.send(2 * number, b"a", b"b")[0] == ErrorCode.duplicate_sequence_number, f"{7 - number} back"
    assert producer.send(14, b"a")[0] == ErrorCode.out_of_order_sequence_number  # Not the batch that was sent.
    assert producer.client.log_end(producer.topic) == 16


def test_s10_an_older_epoch(producer: Producer) -> None:
    assert producer.send(0, epoch=3) == (0, 0)
    assert producer.send(0, epoch=4) == (0, 1)
    for epoch in (3, 0):
        assert producer.send(1, epoch=epoch)[0] == ErrorCode.invalid_producer_epoch
    assert producer.send(5, epoch=5)[0] == ErrorCode.out_of_order_sequence_number  # A new epoch begins with 0.
    assert producer.client.log_end(producer.topic) == 2
