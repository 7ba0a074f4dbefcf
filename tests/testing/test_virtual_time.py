"""What takes minutes or days in production happens at once when a test advances the clock."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import consumer_of, next_message, receive, send, until
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

import penstock.testing
from penstock.testing.virtual_time import VirtualTime, VirtualTimeLoop

DYING_CONSUMER = Path(__file__).with_name("dying_consumer.py")
HOUR_S = 3600
DAY_S = 24 * HOUR_S


@pytest.fixture
def broker() -> Iterator[penstock.testing.EmbeddedBroker]:
    """One of its own for each test: they move its clock."""
    with penstock.testing.broker() as running:
        yield running


def members_count(bootstrap_servers: str, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    return len(admin.describe_consumer_groups([group])[group].result(60).members)


def first_offset(bootstrap_servers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "looks at offsets"})
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
    consumer.close()
    return int(low)


def test_a_member_that_stopped_heartbeating_is_thrown_out(broker: penstock.testing.EmbeddedBroker) -> None:
    topic = broker.create_topic()
    send(broker.bootstrap_servers, topic, "one")
    arguments = [sys.executable, str(DYING_CONSUMER), broker.bootstrap_servers, topic, "workers"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "joined\n"
        victim.kill()
    assert members_count(broker.bootstrap_servers, "workers") == 1
    broker.advance(40)
    assert members_count(broker.bootstrap_servers, "workers") == 1
    broker.advance(6)  # librdkafka's session.timeout.ms is 45 s.
    assert members_count(broker.bootstrap_servers, "workers") == 0
    assert receive(broker.bootstrap_servers, topic, 1, group="workers") == ["one"]


def test_retention_deletes_what_is_too_old(broker: penstock.testing.EmbeddedBroker) -> None:
    topic = broker.create_topic(config={"retention.ms": 7 * DAY_S * 1000})
    send(broker.bootstrap_servers, topic, "old", "older")
    broker.advance(6 * DAY_S)
    assert first_offset(broker.bootstrap_servers, topic) == 0
    broker.advance(DAY_S + HOUR_S)
    assert first_offset(broker.bootstrap_servers, topic) == 2


def test_retention_waits_for_its_next_check() -> None:
    with penstock.testing.broker({"log.retention.check.interval.ms": HOUR_S * 1000}) as broker:
        topic = broker.create_topic(config={"retention.ms": 1000})
        send(broker.bootstrap_servers, topic, "old")
        broker.advance(HOUR_S / 2)
        assert first_offset(broker.bootstrap_servers, topic) == 0
        broker.advance(HOUR_S / 2 + 60)
        assert first_offset(broker.bootstrap_servers, topic) == 1


def test_clients_stay_connected_while_time_flies(broker: penstock.testing.EmbeddedBroker) -> None:
    topic = broker.create_topic()
    errors: list[object] = []
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "error_cb": errors.append})
    consumer.assign([TopicPartition(topic, 0, 0)])
    send(broker.bootstrap_servers, topic, "before")
    assert next_message(consumer).value() == b"before"
    broker.advance(DAY_S)
    send(broker.bootstrap_servers, topic, "after")
    assert next_message(consumer).value() == b"after"
    consumer.close()
    assert errors == []


def test_a_member_that_is_well_comes_back_after_its_session_ended(broker: penstock.testing.EmbeddedBroker) -> None:
    topic = broker.create_topic()
    consumer = consumer_of(broker.bootstrap_servers, topic)
    send(broker.bootstrap_servers, topic, "before")
    assert next_message(consumer).value() == b"before"
    consumer.commit(asynchronous=False)
    broker.advance(60)
    assert members_count(broker.bootstrap_servers, "readers") == 0
    send(broker.bootstrap_servers, topic, "after")
    assert next_message(consumer).value() == b"after"
    until(lambda: consumer.poll(0.05) is None and members_count(broker.bootstrap_servers, "readers") == 1, "joined")
    consumer.close()


def test_the_brokers_clock_shows_the_advance(broker: penstock.testing.EmbeddedBroker) -> None:
    before_ms = time.time_ns() // 1_000_000
    broker.advance(HOUR_S)
    assert HOUR_S * 1000 <= broker.now_ms() - before_ms < HOUR_S * 1000 + 60_000


def test_time_does_not_go_back(broker: penstock.testing.EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        broker.advance(-1)


def test_timers_fire_in_order_and_repeated_work_repeats() -> None:
    clock = VirtualTime()
    fired: list[str] = []

    async def every_ten_seconds() -> None:
        while True:
            await asyncio.sleep(10)
            fired.append("tick")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(59, fired.append, "59 s")
        loop.call_later(15, fired.append, "15 s")
        task = loop.create_task(every_ten_seconds())
        await asyncio.sleep(0)
        await clock.advance(60)
        task.cancel()

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        runner.run(scenario())
    # A step is an eighth of what is left, so the sleeps end late by up to 7 s at first and less and less later.
    assert fired[:2] == ["tick", "15 s"] and fired[-1] == "59 s"
    assert 4 <= fired.count("tick") <= 5


def test_a_sleeping_loop_is_woken() -> None:
    clock = VirtualTime()
    asleep = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def sleeper() -> None:
        loops.append(asyncio.get_running_loop())
        asleep.set()
        await asyncio.sleep(HOUR_S)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
            runner.run(sleeper())

    thread = threading.Thread(target=run)
    thread.start()
    asleep.wait()
    asyncio.run_coroutine_threadsafe(clock.advance(HOUR_S), loops[0])
    thread.join(60)
    assert not thread.is_alive()
