"""Publishing: a future at once, resolved at delivery; bounded memory; errors in words."""

import subprocess
import sys
import threading

import pytest

import penstock
from penstock.client import ClientError, Closed, Connection, DeliveryFailed, Unreachable
from penstock.testing import EmbeddedBroker

TIMEOUT_S = 60


def test_the_future_gives_the_place_of_the_message(connection: Connection, penstock_topic: str) -> None:
    futures = [connection.publish(penstock_topic, f"message {number}") for number in range(100)]
    receipts = [future.result(TIMEOUT_S) for future in futures]
    assert [(receipt.topic, receipt.partition, receipt.offset) for receipt in receipts] == [
        (penstock_topic, 0, number) for number in range(100)
    ]


def test_publish_returns_before_delivery(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    with penstock.connect(penstock_broker.bootstrap_servers, settings={"linger.ms": 2000}) as connection:
        future = connection.publish(penstock_topic, "soon")
        assert not future.done()
        assert not future.cancel()
        assert future.result(TIMEOUT_S).offset == 0


def test_messages_with_one_key_go_to_one_partition(connection: Connection, penstock_broker: EmbeddedBroker) -> None:
    topic = penstock_broker.create_topic(partitions=8)
    futures = [connection.publish(topic, "x", key="order 42") for _ in range(20)]
    assert len({future.result(TIMEOUT_S).partition for future in futures}) == 1


def test_keys_are_routed_as_by_the_java_client(connection: Connection, penstock_broker: EmbeddedBroker) -> None:
    topic = penstock_broker.create_topic(partitions=10)
    # The hash of "21" is from the tests of the Java client; it drops the sign.
    expected = (-973932308 & 0x7FFFFFFF) % 10
    assert connection.publish(topic, "x", key="21").result(TIMEOUT_S).partition == expected


def test_at_most_once_asks_for_no_receipt(connection: Connection, penstock_topic: str) -> None:
    receipt = connection.publish(penstock_topic, "gone", delivery="at-most-once").result(TIMEOUT_S)
    assert (receipt.topic, receipt.offset) == (penstock_topic, None)


def test_an_unknown_delivery_names_those_there_are(connection: Connection, penstock_topic: str) -> None:
    with pytest.raises(ClientError, match='"at-most-once", "at-least-once", "exactly-once"'):
        connection.publish(penstock_topic, "x", delivery="twice")


def test_a_full_queue_makes_the_publisher_wait(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    settings = {"queue.buffering.max.messages": 10, "linger.ms": 20}
    with penstock.connect(penstock_broker.bootstrap_servers, settings=settings) as connection:
        futures = []
        for number in range(100):
            futures.append(connection.publish(penstock_topic, str(number)))
            assert sum(not future.done() for future in futures) <= 11
        assert [future.result(TIMEOUT_S).offset for future in futures] == list(range(100))


def test_closing_delivers_what_was_published(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    with penstock.connect(penstock_broker.bootstrap_servers, settings={"linger.ms": 500}) as connection:
        futures = [connection.publish(penstock_topic, "x") for _ in range(1000)]
    assert all(future.done() and future.exception() is None for future in futures)


def test_closing_leaves_no_thread_behind(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    def threads() -> set[threading.Thread]:
        """But for those of the broker, which begin when it needs them."""
        return {thread for thread in threading.enumerate() if not thread.name.startswith("penstock disk")}

    before = threads()
    with penstock.connect(penstock_broker.bootstrap_servers) as connection:
        connection.publish(penstock_topic, "x").result(TIMEOUT_S)
    assert threads() == before


def test_a_program_that_ends_without_closing_has_published(
    connection: Connection, penstock_broker: EmbeddedBroker, penstock_topic: str
) -> None:
    code = f"import penstock; penstock.connect({penstock_broker.bootstrap_servers!r}).publish({penstock_topic!r}, 'x')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)
    assert connection.publish(penstock_topic, "second").result(TIMEOUT_S).offset == 1


def test_flush_returns_when_all_is_delivered(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    with penstock.connect(penstock_broker.bootstrap_servers, settings={"linger.ms": 200}) as connection:
        future = connection.publish(penstock_topic, "x")
        connection.flush()
        assert future.done()


def test_a_message_that_is_too_large_fails_its_future_only(connection: Connection, penstock_topic: str) -> None:
    failed = connection.publish(penstock_topic, b"x" * 2_000_000)
    with pytest.raises(DeliveryFailed, match=r"Cannot publish to .*too large.*max\.message\.bytes") as caught:
        failed.result(TIMEOUT_S)
    assert caught.value.code == "MSG_SIZE_TOO_LARGE"
    assert connection.publish(penstock_topic, "small").result(TIMEOUT_S).offset == 0


def test_an_unreachable_broker_is_said_at_once() -> None:
    with pytest.raises(Unreachable, match=r"Cannot reach a broker at localhost:1: connection refused.*penstock serve"):
        penstock.connect("localhost:1")
    with pytest.raises(ClientError, match="not the address of a broker"):
        penstock.connect("localhost:none")


def test_a_broker_that_goes_away_fails_the_message_after_the_timeout() -> None:
    with penstock.testing.broker() as broker:
        connection = penstock.connect(broker.bootstrap_servers, publish_timeout=5)
        connection.publish("t", "arrives").result(TIMEOUT_S)
    with connection, pytest.raises(DeliveryFailed, match=r"timed out.*broker runs"):
        connection.publish("t", "does not").result(TIMEOUT_S)


def test_a_closed_connection_says_so(penstock_broker: EmbeddedBroker) -> None:
    connection = penstock.connect(penstock_broker.bootstrap_servers)
    connection.close()
    connection.close()
    with pytest.raises(Closed, match=r"Cannot publish: the connection is closed"):
        connection.publish("t", "x")
    with pytest.raises(Closed):
        connection.subscribe("t", group="g")
