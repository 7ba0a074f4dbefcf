"""Transactions of a real client (librdkafka): commit, abort, shutting out, timeouts, offsets, handing over."""

import itertools
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.server.api import ApiKey
from penstock.testing import EmbeddedBroker, broker
from penstock.wire.codec import Struct, request_writer, response_reader

TIMEOUT_S = 60.0
_numbers = itertools.count()

# All of one broker, which serves a few hundred short transactions in passing.
SETTINGS = {"transaction.state.log.num.partitions": 4, "offsets.topic.num.partitions": 4}


@pytest.fixture(scope="module")
def served() -> Iterator[EmbeddedBroker]:
    with broker(SETTINGS) as running:
        yield running


def producer_on(served: EmbeddedBroker, transactional_id: str, **config: object) -> Producer:
    settings = {
        "bootstrap.servers": served.bootstrap_servers,
        "transactional.id": transactional_id,
        "linger.ms": 0,
    }
    producer = Producer({**settings, **config})
    producer.init_transactions(TIMEOUT_S)
    return producer


def unique(name: str) -> str:
    return f"{name}-{next(_numbers)}"


def read(
    served: EmbeddedBroker, topic: str, *, count: int, is_committed: bool = True, partitions: int = 1
) -> list[str]:
    """The first `count` values, and those that come with them in half a second more."""
    consumer = Consumer(
        {
            "bootstrap.servers": served.bootstrap_servers,
            "group.id": unique("reader"),
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    values: list[str] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None
                values.append(message.value().decode())
            elif len(values) >= count:
                break
    finally:
        consumer.close()
    return sorted(values)


def test_committed_records_are_read_and_aborted_ones_are_not(served: EmbeddedBroker) -> None:
    topic = served.create_topic(partitions=3)
    producer = producer_on(served, unique("tx"))
    for number in range(10):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, f"{number}-{partition}", partition=partition)
        if number % 2:
            producer.flush()
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    committed = sorted(f"{number}-{partition}" for number in range(0, 10, 2) for partition in range(3))
    assert read(served, topic, count=15, partitions=3) == committed
    assert len(read(served, topic, count=30, is_committed=False, partitions=3)) == 30


def test_an_open_transaction_is_not_read(served: EmbeddedBroker) -> None:
    topic = served.create_topic()
    writing, later = producer_on(served, unique("tx")), producer_on(served, unique("tx"))
    writing.begin_transaction()
    writing.produce(topic, "open")
    writing.flush()
    later.begin_transaction()
    later.produce(topic, "later")
    later.commit_transaction(TIMEOUT_S)
    assert read(served, topic, count=0) == []
    assert read(served, topic, count=2, is_committed=False) == ["later", "open"]
    writing.commit_transaction(TIMEOUT_S)
    assert read(served, topic, count=2) == ["later", "open"]


def test_a_producer_that_was_replaced_is_shut_out(served: EmbeddedBroker) -> None:
    topic, name = served.create_topic(), unique("tx")
    old = producer_on(served, name)
    old.begin_transaction()
    old.produce(topic, "old")
    old.flush()
    new = producer_on(served, name)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    new.begin_transaction()
    new.produce(topic, "new")
    new.commit_transaction(TIMEOUT_S)
    assert read(served, topic, count=1) == ["new"]


def test_a_transaction_that_takes_too_long_is_aborted(served: EmbeddedBroker) -> None:
    topic, name = served.create_topic(), unique("tx")
    slow = producer_on(served, name, **{"transaction.timeout.ms": 60_000})
    slow.begin_transaction()
    slow.produce(topic, "slow")
    slow.flush()
    served.advance(70)
    quick = producer_on(served, unique("tx"))
    quick.begin_transaction()
    quick.produce(topic, "quick")
    quick.commit_transaction(TIMEOUT_S)
    assert read(served, topic, count=1) == ["quick"]
    with pytest.raises(KafkaException):
        slow.commit_transaction(TIMEOUT_S)


def test_offsets_are_committed_with_the_transaction(served: EmbeddedBroker) -> None:
    source, target, group = served.create_topic(), served.create_topic(), unique("group")
    consumer = Consumer({"bootstrap.servers": served.bootstrap_servers, "group.id": group, "enable.auto.commit": False})
    producer = producer_on(served, unique("tx"))
    for offset, is_commit in ((5, True), (9, False)):
        producer.begin_transaction()
        producer.produce(target, str(offset))
        offsets = [TopicPartition(source, 0, offset)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        if is_commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
        (found,) = consumer.committed([TopicPartition(source, 0)], TIMEOUT_S)
        assert found.offset == 5
    assert read(served, target, count=1) == ["5"]
    consumer.close()


# Handing over (KIP-939): librdkafka has no request for it, so the committer speaks for itself.


def ask(served: EmbeddedBroker, key: ApiKey, version: int, **fields: Any) -> Struct:
    host, port = served.bootstrap_servers.split(":")
    body = bytearray(struct.pack(">hhih", key, version, 1, -1) + b"\0")
    request_writer(key, version)(body, Struct(**fields))
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection, connection.makefile("rb") as replies:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", replies.read(4))
        answer, _ = response_reader(key, version)(memoryview(replies.read(size)), 5)
    assert isinstance(answer, Struct)
    return answer


@pytest.mark.parametrize("is_commit", [True, False])
def test_what_one_process_has_written_another_one_ends(served: EmbeddedBroker, is_commit: bool) -> None:
    topic, name = served.create_topic(), unique("tx")
    writer = producer_on(served, name, **{"transaction.timeout.ms": 60_000})
    writer.begin_transaction()
    writer.produce(topic, "handed over")
    writer.flush()
    taken = ask(
        served,
        ApiKey.INIT_PRODUCER_ID,
        6,
        transactional_id=name,
        transaction_timeout_ms=0,
        enable2_pc=True,
        keep_prepared_txn=True,
    )
    assert (taken.error_code, taken.ongoing_txn_producer_id) == (0, taken.producer_id)
    with pytest.raises(KafkaException) as refused:
        writer.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    served.advance(3600)
    assert read(served, topic, count=0) == []
    for _ in range(3):
        while True:
            ended = ask(
                served,
                ApiKey.END_TXN,
                4,
                transactional_id=name,
                producer_id=taken.producer_id,
                producer_epoch=taken.producer_epoch,
                committed=is_commit,
            )
            if ended.error_code != 51:
                break
            time.sleep(0.01)
        assert ended.error_code == 0
    assert read(served, topic, count=int(is_commit)) == ["handed over"] * is_commit
