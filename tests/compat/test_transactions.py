"""Transactions of every client that has them: committed, aborted, shut out, timed out, and with a group's offsets.

What a record's value says became of it, every client must see: "c…" was committed, "a…" aborted.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from .broker import Broker
from .committed_offsets import committed
from .group_member import wait_until
from .kafka_tools import TRANSACTIONS, KafkaTools
from .missing_parts import skip_when_missing
from .topics import create_topic
from .transactor import KINDS, Refused, Transactor, TransactorKind

TIMEOUT_MS = 60_000
SHORT_TIMEOUT_MS = 3_000
COPIED = 50

EVERY_CLIENT = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)

NewTransactor = Callable[[TransactorKind], Transactor]


@pytest.fixture
def transactor(group_broker: Broker, tmp_path: Path) -> Iterator[NewTransactor]:
    """Starts client programs, which are gone after the test."""
    started: list[Transactor] = []

    def start(kind: TransactorKind) -> Transactor:
        with skip_when_missing(kind.name):
            started.append(Transactor(kind, group_broker.bootstrap, tmp_path))
        return started[-1]

    yield start
    for one in started:
        one.__exit__()


@pytest.fixture
def topic(group_broker: Broker, topic_prefix: str, kind: TransactorKind, request: pytest.FixtureRequest) -> str:
    name = f"{topic_prefix}-{request.function.__name__[5:40]}-{kind.name}"
    create_topic(group_broker.bootstrap, name)
    return name


@pytest.fixture
def tools(kafka_tools: KafkaTools, group_broker: Broker) -> KafkaTools:
    return kafka_tools.against(group_broker.bootstrap)


def send_alone(broker: Broker, topic: str, *values: str) -> None:
    """Outside of any transaction."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(60) == 0


def end_offset(broker: Broker, topic: str, isolation: IsolationLevel) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()}, isolation_level=isolation)
    (listed,) = asked.values()
    return int(listed.result(60).offset)


def last_stable_offset(broker: Broker, topic: str) -> int:
    return end_offset(broker, topic, IsolationLevel.READ_COMMITTED)


@EVERY_CLIENT
def test_readers_see_what_was_committed_and_never_what_was_aborted(
    kind: TransactorKind, transactor: NewTransactor, group_broker: Broker, topic: str, tools: KafkaTools
) -> None:
    name = f"id-{topic}"
    client = transactor(kind)
    client.ask("open", name, TIMEOUT_MS)
    client.write(topic, "c1", "c2")
    client.write(topic, "a1", ends_with="abort")
    client.write(topic, "c3")
    client.ask("begin")
    client.ask("send", topic, 0, "c4")
    send_alone(group_broker, topic, "c-alone")
    last_stable = last_stable_offset(group_broker, topic)
    assert last_stable < end_offset(group_broker, topic, IsolationLevel.READ_UNCOMMITTED) - 1, "it is open"
    client.ask("commit")
    wait_until(lambda: last_stable_offset(group_broker, topic) > last_stable, lambda: "the last stable offset moves")
    client.write(topic, "a2", "a3", ends_with="abort")
    # Marker writing may go on after the answer; "end" is readable when all are there.
    send_alone(group_broker, topic, "end")
    assert client.read("committed", topic) == ["c1", "c2", "c3", "c4", "c-alone"]
    assert client.read("uncommitted", topic) == ["c1", "c2", "a1", "c3", "c4", "c-alone", "a2", "a3"]
    with Transactor(KINDS[0], group_broker.bootstrap, Path(client._stderr).parent) as confluent:
        assert confluent.read("committed", topic) == ["c1", "c2", "c3", "c4", "c-alone"]
    epoch = int(described(tools, name)["ProducerEpoch"])
    assert (epoch > 0) == (kind.transaction_version == 2), f"epoch {epoch} after five transactions"


@EVERY_CLIENT
def test_who_comes_with_the_same_id_shuts_out_the_one_before(
    kind: TransactorKind, transactor: NewTransactor, group_broker: Broker, topic: str
) -> None:
    zombie, heir = transactor(kind), transactor(kind)
    zombie.ask("open", f"id-{topic}", TIMEOUT_MS)
    zombie.ask("begin")
    zombie.ask("send", topic, 0, "a1")
    heir.ask("open", f"id-{topic}", TIMEOUT_MS)  # Its answer comes when a1 is aborted, so nobody waits for it.
    with pytest.raises(Refused):
        zombie.ask("commit")
    heir.write(topic, "c1")
    with pytest.raises(Refused):
        zombie.write(topic, "a2")
    heir.write(topic, "c2")
    send_alone(group_broker, topic, "end")
    assert heir.read("committed", topic) == ["c1", "c2"]


@EVERY_CLIENT
def test_a_transaction_that_is_open_for_too_long_is_aborted(
    kind: TransactorKind, transactor: NewTransactor, group_broker: Broker, topic: str
) -> None:
    client = transactor(kind)
    client.ask("open", f"id-{topic}", SHORT_TIMEOUT_MS)
    client.ask("begin")
    client.ask("send", topic, 0, "a1")
    begun = time.monotonic()
    send_alone(group_broker, topic, "c-alone")
    wait_until(lambda: last_stable_offset(group_broker, topic) > 1, lambda: "the last stable offset moves", 60)
    stuck_s = time.monotonic() - begun
    assert stuck_s > SHORT_TIMEOUT_MS / 1000 - 1, "it was aborted before its time"
    with pytest.raises(Refused):
        client.ask("commit")
    heir = transactor(kind)
    heir.ask("open", f"id-{topic}", SHORT_TIMEOUT_MS)
    heir.write(topic, "c1")
    send_alone(group_broker, topic, "end")
    assert heir.read("committed", topic) == ["c-alone", "c1"]


@EVERY_CLIENT
def test_offsets_and_records_of_a_copy_are_committed_together(
    kind: TransactorKind, transactor: NewTransactor, group_broker: Broker, topic: str
) -> None:
    source, group = f"{topic}-source", f"group-{topic}"
    create_topic(group_broker.bootstrap, source)
    numbers = [str(number) for number in range(COPIED)]
    send_alone(group_broker, source, *numbers, "end")
    client = transactor(kind)
    transactions = int(client.ask("copy", f"id-{topic}", source, topic, group))
    assert transactions >= 3
    send_alone(group_broker, topic, "end")
    assert client.read("committed", topic) == numbers
    aborted = len(client.read("uncommitted", topic)) - len(numbers)
    assert aborted > 0, "a transaction was to be aborted"
    admin = AdminClient({"bootstrap.servers": group_broker.bootstrap})
    wait_until(
        lambda: committed(admin, group) in ({0: COPIED}, {0: COPIED + 1}), lambda: f"{committed(admin, group)}", 30
    )


def described(tools: KafkaTools, transactional_id: str) -> dict[str, str]:
    header, row = [
        line.split("\t")
        for line in tools.output(TRANSACTIONS, "describe", "--transactional-id", transactional_id).splitlines()
        if line.strip()
    ]
    return {name.strip(): value.strip() for name, value in zip(header, row, strict=True)}
