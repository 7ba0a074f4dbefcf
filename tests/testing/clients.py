"""librdkafka clients for the tests of the embedded broker."""

import time
from collections.abc import Callable

from confluent_kafka import Consumer, Message, Producer

TIMEOUT_S = 60.0


def send(bootstrap_servers: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def consumer_of(bootstrap_servers: str, topic: str, group: str = "readers") -> Consumer:
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def receive(bootstrap_servers: str, topic: str, count: int, group: str = "readers") -> list[str]:
    consumer = consumer_of(bootstrap_servers, topic, group)
    try:
        return [str(next_message(consumer).value(), "utf-8") for _ in range(count)]
    finally:
        consumer.close()


def next_message(consumer: Consumer) -> Message:
    message = consumer.poll(TIMEOUT_S)
    assert message is not None, f"nothing came within {TIMEOUT_S} s"
    assert message.error() is None, message.error()
    return message


def until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"did not happen within {TIMEOUT_S} s: {what}"
        time.sleep(0.005)
