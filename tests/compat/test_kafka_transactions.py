"""kafka-transactions: what the Java Admin client knows of transactions, in tables; and ending those that hang."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from .broker import Broker
from .conftest import NewCluster
from .group_member import wait_until
from .kafka_tools import TRANSACTIONS, KafkaTools
from .topics import create_topic, read_values

RECORD_COUNT = 5


def _table(kafka_tools: KafkaTools, *arguments: str) -> list[dict[str, str]]:
    headings, *rows = kafka_tools.output(TRANSACTIONS, *arguments).splitlines()
    return [dict(zip(headings.split(), row.split(), strict=False)) for row in rows if row.strip()]


def _described(kafka_tools: KafkaTools, topic: str, partition: int) -> list[dict[str, str]]:
    return _table(kafka_tools, "describe-producers", "--topic", topic, "--partition", str(partition))


def test_idempotent_producers_are_described(broker: Broker, kafka_tools: KafkaTools, topic_prefix: str) -> None:
    topic = f"{topic_prefix}-producers"
    create_topic(broker.bootstrap, topic, partition_count=2)
    before_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for _ in range(RECORD_COUNT):
            producer.produce(topic, b"value", partition=0)
        assert producer.flush(30) == 0
    plain = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": False})
    plain.produce(topic, b"value", partition=1)
    assert plain.flush(30) == 0

    rows = _described(kafka_tools, topic, 0)
    assert len({row["ProducerId"] for row in rows}) == 2
    for row in rows:
        assert (row["ProducerEpoch"], row["LastSequence"]) == ("0", str(RECORD_COUNT - 1))
        assert (row["LatestCoordinatorEpoch"], row["CurrentTransactionStartOffset"]) == ("-1", "None")
        assert before_ms <= int(row["LastTimestamp"]) <= time.time_ns() // 1_000_000
    assert _described(kafka_tools, topic, 1) == []


class Open:
    """A transaction that is open, with one record in a topic of its own."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.topic, self.id = name, f"id-{name}"
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        create_topic(broker.bootstrap, name)
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": self.id, "transaction.timeout.ms": 300_000}
        )
        self.producer.init_transactions()
        self.producer.begin_transaction()
        self.producer.produce(name, b"value", partition=0)
        assert self.producer.flush(60) == 0

    def last_stable_offset(self) -> int:
        (listed,) = self._admin.list_offsets(
            {TopicPartition(self.topic, 0): OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
        ).values()
        return int(listed.result(60).offset)

    def wait_until_ended(self) -> None:
        wait_until(lambda: self.last_stable_offset() > 0, lambda: "the last stable offset moves")


@pytest.fixture
def open_transaction(broker: Broker, topic_prefix: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    opened = Open(broker, f"{topic_prefix}-{request.node.name[5:45]}")
    assert opened.last_stable_offset() == 0
    yield opened
    opened.producer.purge()


def test_an_open_transaction_is_listed_and_described(open_transaction: Open, kafka_tools: KafkaTools) -> None:
    name, topic = open_transaction.id, open_transaction.topic
    (listed,) = [row for row in _table(kafka_tools, "list") if row["TransactionalId"] == name]
    assert listed["TransactionState"] == "Ongoing"
    (row,) = _table(kafka_tools, "describe", "--transactional-id", name)
    assert (row["ProducerId"], row["CoordinatorId"]) == (listed["ProducerId"], listed["Coordinator"])
    assert (row["TransactionState"], row["ProducerEpoch"], row["TransactionTimeoutMs"]) == ("Ongoing", "0", "300000")
    assert row["TopicPartitions"] == f"{topic}-0"
    assert 0 <= int(row["TransactionDurationMs"]) < 300_000
    (producer,) = _described(kafka_tools, topic, 0)
    assert (producer["ProducerId"], producer["CurrentTransactionStartOffset"]) == (row["ProducerId"], "0")

    open_transaction.producer.commit_transaction()
    wait_until(
        lambda: _table(kafka_tools, "describe", "--transactional-id", name)[0]["TransactionState"] == "CompleteCommit",
        lambda: f"{_table(kafka_tools, 'describe', '--transactional-id', name)}",
    )
    (producer,) = _described(kafka_tools, topic, 0)
    assert producer["CurrentTransactionStartOffset"] == "None"
    assert int(producer["LatestCoordinatorEpoch"]) >= 0


def test_lists_are_filtered(open_transaction: Open, kafka_tools: KafkaTools) -> None:
    name = open_transaction.id
    by_name = _table(kafka_tools, "list", "--transactional-id-pattern", f".*{name[4:]}")
    assert [row["TransactionalId"] for row in by_name] == [name]
    assert _table(kafka_tools, "list", "--transactional-id-pattern", "no-such-id") == []
    long_ones = _table(kafka_tools, "list", "--duration-filter", "3600000")
    assert name not in [row["TransactionalId"] for row in long_ones]


def test_an_unknown_id_is_an_error(kafka_tools: KafkaTools) -> None:
    result = kafka_tools.run(TRANSACTIONS, "describe", "--transactional-id", "nobody")
    assert result.exit_code == 1 and "could not be found" in result.err


def test_a_transaction_that_its_coordinator_knows_does_not_hang(
    open_transaction: Open, kafka_tools: KafkaTools
) -> None:
    where = ["--topic", open_transaction.topic, "--partition", "0"]
    assert _table(kafka_tools, "find-hanging", *where, "--max-transaction-timeout", "0") == []


def test_reliability_s15_what_a_coordinator_knows_is_not_aborted_behind_its_back(
    open_transaction: Open, kafka_tools: KafkaTools
) -> None:
    where = ["--topic", open_transaction.topic, "--partition", "0"]
    refused = kafka_tools.run(TRANSACTIONS, "abort", *where, "--start-offset", "0")
    assert refused.exit_code == 1 and "authorization" in refused.err.lower()
    assert open_transaction.last_stable_offset() == 0
    open_transaction.producer.commit_transaction()
    open_transaction.wait_until_ended()


def test_a_transaction_that_hangs_is_found_and_aborted(new_cluster: NewCluster, kafka_tools: KafkaTools) -> None:
    """The state of all transactions is lost, as when a disk is: nobody will ever end the one that is open."""
    with new_cluster({}, brokers=1).serving() as broker:
        tools, opened = kafka_tools.against(broker.bootstrap), Open(broker, "hangs")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["__transaction_state"])["__transaction_state"].result(60)
        where = ["--topic", opened.topic, "--partition", "0"]
        (found,) = _table(tools, "find-hanging", *where, "--max-transaction-timeout", "0")
        assert (found["Topic"], found["Partition"], found["StartOffset"]) == (opened.topic, "0", "0")
        assert opened.last_stable_offset() == 0
        tools.output(TRANSACTIONS, "abort", *where, "--start-offset", "0")
        opened.wait_until_ended()
        assert _table(tools, "find-hanging", *where, "--max-transaction-timeout", "0") == []
        (producer,) = _described(tools, opened.topic, 0)
        assert producer["CurrentTransactionStartOffset"] == "None"
        assert read_values(broker.bootstrap, opened.topic, 0) == []
        opened.producer.purge()


def test_an_operator_ends_the_transaction_of_an_id(
    open_transaction: Open, kafka_tools: KafkaTools, broker: Broker
) -> None:
    kafka_tools.output(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", open_transaction.id)
    open_transaction.wait_until_ended()
    with pytest.raises(KafkaException):
        open_transaction.producer.commit_transaction()
    assert read_values(broker.bootstrap, open_transaction.topic, 0) == []
