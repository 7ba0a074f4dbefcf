"""Subscribing: an iterator of messages, committed before or after they are handled."""

import threading
import time
from itertools import islice

import pytest

import penstock
from penstock.client import Closed, Connection, SubscriptionFailed
from penstock.testing import EmbeddedBroker

TIMEOUT_S = 60.0


def publish_numbers(connection: Connection, topic: str, count: int) -> None:
    for number in range(count):
        connection.publish(topic, str(number))
    connection.flush()


def rest_of(connection: Connection, topic: str, group: str, count: int) -> list[bytes | None]:
    with connection.subscribe(topic, group=group, timeout=TIMEOUT_S) as messages:
        return [message.value for message in islice(messages, count)]


def test_messages_come_with_everything_that_was_sent(connection: Connection, penstock_topic: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    headers = [("trace", "1"), ("trace", b"\x02"), ("none", None)]
    connection.publish(penstock_topic, "välue", key=b"key", headers=headers)
    connection.publish(penstock_topic, None, headers={"a": "b"}, timestamp=1234, partition=0)
    with connection.subscribe(penstock_topic, group="g") as messages:
        first, second = next(messages), next(messages)
    assert (first.topic, first.partition, first.offset) == (penstock_topic, 0, 0)
    assert (first.key, first.value) == (b"key", "välue".encode())
    assert first.header_pairs == (("trace", b"1"), ("trace", b"\x02"), ("none", None))
    assert first.headers == {"trace": b"\x02", "none": None}
    assert first.timestamp is not None and before_ms <= first.timestamp < before_ms + 60_000
    assert (second.offset, second.key, second.value, second.timestamp) == (1, None, None, 1234)
    assert second.headers == {"a": b"b"}


def test_a_group_goes_on_where_it_stopped(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 4)
    assert rest_of(connection, penstock_topic, "g", 2) == [b"0", b"1"]
    assert rest_of(connection, penstock_topic, "g", 2) == [b"2", b"3"]


def test_every_group_gets_every_message(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 2)
    assert rest_of(connection, penstock_topic, "one", 2) == rest_of(connection, penstock_topic, "other", 2)


def test_at_least_once_a_message_whose_handling_failed_comes_again(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 3)
    with pytest.raises(ZeroDivisionError), connection.subscribe(penstock_topic, group="g") as messages:
        for message in messages:
            1 / (1 - message.offset)
    assert rest_of(connection, penstock_topic, "g", 2) == [b"1", b"2"]


def test_at_most_once_a_message_whose_handling_failed_is_gone(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 3)
    with pytest.raises(ZeroDivisionError):  # noqa: SIM117 (the subscription ends inside)
        with connection.subscribe(penstock_topic, group="g", delivery="at-most-once") as messages:
            for message in messages:
                1 / (1 - message.offset)
    assert rest_of(connection, penstock_topic, "g", 1) == [b"2"]


def test_at_most_once_the_message_is_committed_before_it_is_handed_out(
    connection: Connection, penstock_topic: str
) -> None:
    publish_numbers(connection, penstock_topic, 2)
    with connection.subscribe(penstock_topic, group="g", delivery="at-most-once") as crashes:
        assert next(crashes).value == b"0"
        committed = crashes._consumer.committed([*crashes._consumer.assignment()], timeout=TIMEOUT_S)
        assert [place.offset for place in committed] == [1]


def test_commit_includes_the_message_in_hand(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 2)
    messages = connection.subscribe(penstock_topic, group="g")
    messages.commit()  # Nothing yet: no error.
    next(messages)
    messages.commit()
    messages.close()
    assert rest_of(connection, penstock_topic, "g", 1) == [b"1"]


def test_closing_does_not_commit_the_message_in_hand(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 2)
    messages = connection.subscribe(penstock_topic, group="g")
    next(messages)
    messages.close()
    assert rest_of(connection, penstock_topic, "g", 1) == [b"0"]


def test_messages_arrive_when_they_are_published(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    with (
        penstock.connect(penstock_broker.bootstrap_servers, settings={"linger.ms": 0}) as connection,
        connection.subscribe(penstock_topic, group="g") as messages,
    ):
        took_s = []
        for _ in range(20):
            begun = time.perf_counter()
            connection.publish(penstock_topic, "now")
            next(messages)
            took_s.append(time.perf_counter() - begun)
            time.sleep(0.01)
    # About 1 ms. Polling at an interval of 100 ms would show in nearly all of them; a busy machine should not.
    assert sorted(took_s)[5] < 0.05


def test_a_subscriber_may_come_before_the_topic(connection: Connection, penstock_broker: EmbeddedBroker) -> None:
    topic = penstock_broker.unused_topic_name()
    with connection.subscribe(topic, group="g") as messages:
        assert messages.receive(0.3) is None
        connection.publish(topic, "first")
        message = messages.receive(TIMEOUT_S)
    assert message is not None and message.value == b"first"


def test_a_topic_that_nobody_makes_is_an_error_that_says_how() -> None:
    with (
        penstock.testing.broker({"auto.create.topics.enable": False}) as broker,
        penstock.connect(broker.bootstrap_servers) as connection,
        connection.subscribe("missing", group="g") as messages,
        pytest.raises(SubscriptionFailed, match=r"Cannot receive from 'missing'.*penstock topics create missing"),
    ):
        messages.receive(TIMEOUT_S)


def test_with_a_timeout_the_iteration_ends_in_silence(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 3)
    with connection.subscribe(penstock_topic, group="g", timeout=5) as messages:
        assert len(list(messages)) == 3


def test_latest_starts_with_what_comes_next(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 3)
    with connection.subscribe(penstock_topic, group="g", start="latest") as messages:
        while not messages._consumer.assignment():
            assert messages.receive(0.1) is None
        assert messages.receive(0.5) is None
        for _ in range(60):  # Where it starts is decided a little after it has the partition.
            connection.publish(penstock_topic, "new")
            if message := messages.receive(1):
                break
    assert message is not None and message.value == b"new"


def test_stop_ends_the_iteration_from_another_thread(connection: Connection, penstock_topic: str) -> None:
    publish_numbers(connection, penstock_topic, 1)
    messages = connection.subscribe(penstock_topic, group="g")
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(messages))
    thread.start()
    time.sleep(0.2)
    messages.stop()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    messages.close()
    assert list(messages) == []
    with pytest.raises(Closed):
        messages.receive(0)


def test_closing_the_connection_ends_its_subscriptions(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    connection = penstock.connect(penstock_broker.bootstrap_servers)
    messages = connection.subscribe(penstock_topic, group="g")
    thread = threading.Thread(target=lambda: list(messages))
    thread.start()
    connection.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_several_topics_are_read_at_once(connection: Connection, penstock_broker: EmbeddedBroker) -> None:
    topics = [penstock_broker.create_topic(), penstock_broker.create_topic()]
    for topic in topics:
        connection.publish(topic, topic)
    with connection.subscribe(topics, group="g", timeout=TIMEOUT_S) as messages:
        assert {message.topic for message in islice(messages, 2)} == set(topics)
