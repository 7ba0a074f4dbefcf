"""Reading, handling and publishing as one: each message counts once."""

import threading
import time
from itertools import islice

import pytest
from confluent_kafka import Producer

import penstock
from penstock.client import Connection, DeliveryFailed, Fenced, Message, TransactionAborted
from penstock.client.process import Step
from penstock.testing import EmbeddedBroker

TIMEOUT_S = 60.0


@pytest.fixture
def source(penstock_broker: EmbeddedBroker) -> str:
    return penstock_broker.create_topic(partitions=2)


def fill(connection: Connection, topic: str, count: int, partitions: int = 2) -> None:
    for number in range(count):
        connection.publish(topic, str(number), partition=number % partitions)
    connection.flush()


def values(connection: Connection, topic: str, count: int) -> list[int]:
    with connection.subscribe(topic, group=f"g-{time.time_ns()}", timeout=TIMEOUT_S) as messages:
        return [int(message.value or b"") for message in islice(messages, count)]


def copy(step: Step, target: str, message: Message) -> None:
    step.publish(target, message.value, partition=0)


def test_each_message_is_handled_once_by_group(connection: Connection, source: str, penstock_topic: str) -> None:
    fill(connection, source, 25)
    for count in (10, 15):  # The second goes on where the first has stopped.
        with connection.process(source, group="copy", batch=4) as step:
            for message in islice(step, count):
                copy(step, penstock_topic, message)
    assert sorted(values(connection, penstock_topic, 25)) == list(range(25))


def test_publish_of_the_connection_is_part_of_it(connection: Connection, source: str, penstock_topic: str) -> None:
    fill(connection, source, 3)
    with pytest.raises(ZeroDivisionError), connection.process(source, group="copy", batch_seconds=60) as step:
        for message in islice(step, 3):
            connection.publish(penstock_topic, message.value).result(TIMEOUT_S)
        1 / 0  # noqa: B018
    with connection.process(source, group="copy") as step:
        for message in islice(step, 3):
            connection.publish(penstock_topic, message.value)
    connection.publish(penstock_topic, "99")
    assert sorted(values(connection, penstock_topic, 4)) == [0, 1, 2, 99]


def test_nothing_is_seen_of_a_batch_whose_handling_failed(
    connection: Connection, source: str, penstock_topic: str
) -> None:
    fill(connection, source, 10, partitions=1)
    with pytest.raises(ZeroDivisionError), connection.process(source, group="copy", batch=4, batch_seconds=60) as step:
        for message in step:
            copy(step, penstock_topic, message)
            1 / (6 - message.offset)
    assert values(connection, penstock_topic, 4) == [0, 1, 2, 3]
    with connection.process(source, group="copy") as step:
        for message in islice(step, 6):
            copy(step, penstock_topic, message)
    assert values(connection, penstock_topic, 10) == list(range(10))


def test_a_batch_ends_after_a_while_without_messages(connection: Connection, source: str, penstock_topic: str) -> None:
    fill(connection, source, 1)
    with (
        connection.subscribe(penstock_topic, group="g") as results,
        connection.process(source, group="copy", batch_seconds=0.2) as step,
    ):
        copy(step, penstock_topic, next(step))
        assert results.receive(0.5) is None  # The message is in hand: it is not done.
        assert step.receive(1) is None
        result = results.receive(TIMEOUT_S)
    assert result is not None and result.value == b"0"


def test_aborted_work_is_done_again(
    connection: Connection, source: str, penstock_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(connection, source, 10)
    aborted = []
    with connection.process(source, group="copy", batch=3, batch_seconds=60) as step:
        real = step._opened_publisher().commit

        def commit(*arguments: object) -> None:
            if len(aborted) < 2:
                aborted.append(len(handled))
                step._opened_publisher().abort()
                raise TransactionAborted("The transaction was aborted: by the test.", "")
            real(*arguments)  # type: ignore[arg-type]

        handled: list[bytes | None] = []
        monkeypatch.setattr(step._opened_publisher(), "commit", commit)
        for message in islice(step, 16):  # Ten, and three of them twice again.
            handled.append(message.value)
            copy(step, penstock_topic, message)
    assert aborted == [3, 6]
    assert sorted(values(connection, penstock_topic, 10)) == list(range(10))


def test_a_broker_that_has_timed_the_transaction_out_gives_the_messages_again(
    connection: Connection, source: str, penstock_topic: str
) -> None:
    fill(connection, source, 4, partitions=1)
    is_slow = True
    with connection.process(source, group="copy", batch=2, timeout=5, transaction_timeout=2) as step:
        for message in step:
            copy(step, penstock_topic, message)
            if is_slow:
                is_slow = False
                # Seen as soon as the transaction before it is aborted.
                connection.publish(penstock_topic, "99", partition=0, delivery="at-least-once").result(TIMEOUT_S)
                assert values(connection, penstock_topic, 1) == [99]
    assert values(connection, penstock_topic, 5) == [99, 0, 1, 2, 3]


class NeverSendsOffsets:
    """A producer that does not come back from it, as librdkafka's may not when the group's coordinator fails over."""

    def __init__(self, producer: Producer, released: threading.Event) -> None:
        self._producer, self._released = producer, released

    def send_offsets_to_transaction(self, *_: object) -> None:
        assert self._released.wait(TIMEOUT_S), "nobody waits for it for so long"

    def __getattr__(self, name: str) -> object:
        return getattr(self._producer, name)


@pytest.mark.timeout(60)
def test_a_producer_that_never_answers_is_replaced(
    connection: Connection, source: str, penstock_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(connection, source, 4, partitions=1)
    released = threading.Event()
    with connection.process(source, group="copy", batch=2, timeout=5, transaction_timeout=2) as step:
        stuck = step._opened_publisher()
        monkeypatch.setattr(stuck, "_producer", NeverSendsOffsets(stuck._producer, released))
        for message in islice(step, 6):  # Four, and the first two again.
            copy(step, penstock_topic, message)
        assert step._opened_publisher() is not stuck
    released.set()
    assert values(connection, penstock_topic, 4) == [0, 1, 2, 3]


def test_who_has_the_id_of_another_process_shuts_it_out(
    connection: Connection, penstock_broker: EmbeddedBroker, source: str, penstock_topic: str
) -> None:
    fill(connection, source, 2, partitions=1)
    name = f"id-of-{source}"
    with pytest.raises(Fenced, match="give each its own"), connection.process(source, group="copy", id=name) as step:
        for message in step:
            copy(step, penstock_topic, message)
            with penstock.connect(penstock_broker.bootstrap_servers) as newer, newer.transaction(id=name):
                newer.publish(penstock_topic, "99")
    assert values(connection, penstock_topic, 1) == [99]


def test_members_that_come_and_go_handle_each_message_once(
    connection: Connection, penstock_broker: EmbeddedBroker, penstock_topic: str
) -> None:
    source = penstock_broker.create_topic(partitions=4)
    count = 300
    stopping = threading.Event()
    failures: list[BaseException] = []

    def member(life_s: float) -> None:
        try:
            while not stopping.is_set():
                with (
                    penstock.connect(penstock_broker.bootstrap_servers) as own,
                    own.process(source, group="copy", batch=10) as step,
                ):
                    end = time.monotonic() + life_s
                    while time.monotonic() < end and not stopping.is_set():
                        if message := step.receive(0.1):
                            copy(step, penstock_topic, message)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=member, args=(life_s,)) for life_s in (60.0, 1.5)]
    for thread in threads:
        thread.start()
    for number in range(count):
        connection.publish(source, str(number), partition=number % 4)
        time.sleep(0.01)
    found = values(connection, penstock_topic, count)
    stopping.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not failures
    assert sorted(found) == list(range(count))
    connection.publish(penstock_topic, "-1", partition=0)
    assert values(connection, penstock_topic, count + 1)[-1] == -1, "a message was handled twice"


def test_a_result_that_cannot_be_published_is_not_tried_for_ever(
    connection: Connection, source: str, penstock_topic: str
) -> None:
    fill(connection, source, 1)
    with pytest.raises(DeliveryFailed, match="too large"), connection.process(source, group="copy") as step:
        for _ in step:
            step.publish(penstock_topic, b"x" * 2_000_000)


def test_messages_that_lead_to_nothing_are_done_all_the_same(connection: Connection, source: str) -> None:
    fill(connection, source, 5)
    with connection.process(source, group="drop", timeout=8) as step:
        assert len(list(step)) == 5
    connection.publish(source, "last")
    with connection.process(source, group="drop") as step:
        assert next(step).value == b"last"


def test_commit_ends_the_batch_at_once(connection: Connection, source: str, penstock_topic: str) -> None:
    fill(connection, source, 1)
    with connection.process(source, group="copy", batch_seconds=60) as step:
        step.commit()  # Nothing yet: no error.
        copy(step, penstock_topic, next(step))
        step.commit()
        assert values(connection, penstock_topic, 1) == [0]


def test_closing_the_connection_ends_the_loop_and_leaves_nothing_half_done(
    penstock_broker: EmbeddedBroker, connection: Connection, source: str, penstock_topic: str
) -> None:
    fill(connection, source, 3)
    own = penstock.connect(penstock_broker.bootstrap_servers)
    step = own.process(source, group="copy", batch_seconds=60)

    def run() -> None:
        for message in step:
            copy(step, penstock_topic, message)

    thread = threading.Thread(target=run)
    thread.start()
    while not step._count:
        time.sleep(0.05)
    own.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    ends = {b"98", b"99"}  # One for each partition: nobody knows which of them comes first.
    for partition, end in enumerate(sorted(ends)):
        connection.publish(source, end, partition=partition)
    with connection.process(source, group="copy") as rest:
        for message in rest:
            copy(rest, penstock_topic, message)
            ends.discard(message.value or b"")
            if not ends:
                break
    assert sorted(values(connection, penstock_topic, 5)) == [0, 1, 2, 98, 99]


def test_a_loop_ends_that_another_thread_closes_at_its_end(connection: Connection, source: str) -> None:
    fill(connection, source, 1)
    step = connection.process(source, group="copy", batch_seconds=60)
    next(step)
    step.close()
    assert step.finish()
