"""Many clients at once that do nothing but wait."""

import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import figures
from .broker_process import BrokerProcess, running
from .crowd import open_connections, raise_file_limit
from .load import create_topic, produce_one, read_all
from .raw_client import fetch, receive

NewBroker = Callable[..., BrokerProcess]

CONNECTIONS = 10_000
CROWDS = 4  # Processes that share the connections, so that the usual limit of descriptors is enough for each.
WAITING = 1000
POLL_S = 60
TESTS = Path(__file__).resolve().parents[1]


def test_10000_idle_connections_cost_less_than_300_megabytes(new_broker: NewBroker) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 500:
        pytest.skip(f"NOT TESTED: {CONNECTIONS:,} connections. The system allows {hard:,} descriptors to a process")
    broker = new_broker()
    with running(broker), ExitStack() as crowds:
        place = create_topic(broker.bootstrap, "alive")[0]
        assert produce_one(broker.bootstrap, place, b"a:0:") is None
        before = broker.rss_bytes()
        begin = time.monotonic()
        members = [crowds.enter_context(_crowd(broker.port, CONNECTIONS // CROWDS)) for _ in range(CROWDS)]
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n", "a crowd did not get all its connections"
        open_s = time.monotonic() - begin
        cpu_share = _cpu_share(broker, 3)  # One sweep over all connections at least.
        growth = broker.rss_bytes() - before
        assert produce_one(broker.bootstrap, place, b"a:1:") is None, "a new client is served among the idle ones"
        assert len(read_all(broker.bootstrap, [place])[place]) == 2
        broker.check_log()
    figures.note(
        f"{CONNECTIONS:,} idle connections",
        f"{growth / 1e6:.0f} MB more memory ({growth / CONNECTIONS / 1000:.1f} kB each), {cpu_share:.1%} of a core, "
        f"opened in {open_s:.1f} s",
        "< 300 MB",
    )
    assert growth < 300e6


def test_1000_waiting_consumers_cost_no_processor_time_and_all_wake_up(new_broker: NewBroker) -> None:
    raise_file_limit(WAITING + 200)
    broker = new_broker()
    with running(broker), ExitStack() as open_sockets:
        place = create_topic(broker.bootstrap, "awaited")[0]
        assert produce_one(broker.bootstrap, place, b"a:0:") is None
        idle_share = _cpu_share(broker, 1)
        consumers = open_connections(broker.port, WAITING)
        for consumer in consumers:
            open_sockets.enter_context(consumer)
            consumer.sendall(fetch(*place, offset=1, wait_ms=POLL_S * 1000))
        time.sleep(0.5)
        waiting_share = _cpu_share(broker, 3)
        assert not any(_has_answer(consumer) for consumer in consumers), "a consumer was answered with nothing"
        begin = time.monotonic()
        assert produce_one(broker.bootstrap, place, b"wake up") is None
        for consumer in consumers:
            assert b"wake up" in receive(consumer)
        wake_s = time.monotonic() - begin
        broker.check_log()
    figures.note(
        f"{WAITING:,} consumers in a long poll of {POLL_S} s",
        f"{waiting_share:.1%} of a core ({idle_share:.1%} without them); all had the message {wake_s:.2f} s after it "
        "was sent",
        "no polling",
    )
    assert waiting_share < 0.05
    assert wake_s < POLL_S / 2


def _has_answer(consumer: socket.socket) -> bool:
    poll = select.poll()  # `select.select` knows no descriptor above 1023.
    poll.register(consumer, select.POLLIN)
    return bool(poll.poll(0))


def _cpu_share(broker: BrokerProcess, seconds: float) -> float:
    before = broker.cpu_s()
    time.sleep(seconds)
    return (broker.cpu_s() - before) / seconds


class _crowd:
    """A process with `count` idle connections."""

    def __init__(self, port: int, count: int) -> None:
        self._command = [sys.executable, "-m", "faults.crowd", str(port), str(count)]

    def __enter__(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
