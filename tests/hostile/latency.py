"""What others feel of an attack: how long an innocent client waits for its answers, with it and without it.

A wait counts only as far as the broker was at work meanwhile: of the time from request to answer and the processor time
that the broker used in between, the shorter. Others who use the machine make the first longer, and leave the second as
it is; an event loop that is busy with somebody else's request makes both longer. What the second does not show, a loop
that sleeps, is in the median of the first.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

from .broker_process import BrokerProcess
from .client import batch_of, framed, produce_fields, request_frame

FLOOR_S = 0.020  # The machine is shared: below this a difference says nothing.
ATTEMPTS = 3
CALM_S = 0.5
END_S_MAX = 60

INNOCENT = Path(__file__).with_name("innocent.py")


class Waits:
    """Of one client, a number for each of its requests; empty until the client has ended."""

    def __init__(self) -> None:
        self.answered_s: list[float] = []  # From request to answer.
        self.held_s: list[float] = []  # And no longer than the broker was at work meanwhile.

    def p99_s(self) -> float:
        assert self.held_s
        return sorted(self.held_s)[min(len(self.held_s) - 1, int(len(self.held_s) * 0.99))]

    def longest_s(self) -> float:
        return max(self.held_s)

    def median_s(self) -> float:
        return statistics.median(self.answered_s)


@contextmanager
def innocent_client(broker: BrokerProcess, topic: str) -> Iterator[Waits]:
    """Produces one small batch after the other. What it waited for them is known once the block has ended.

    With acks=1: what a sync takes depends on who else uses the disk.
    """
    fields = produce_fields([(topic, 0, batch_of(b"x" * 100))], acks=1)
    request = framed(request_frame(ApiKey.PRODUCE, 9, Struct(**fields)))
    # Of the reply: correlation id, tags, topics, name, partitions and index come before the error code.
    error_position = 4 + 1 + 1 + 1 + len(topic) + 1 + 4
    command = [sys.executable, str(INNOCENT), str(broker.port), str(cpu_clock(broker.pid)), str(error_position)]
    process = subprocess.Popen([*command, request.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    waits = Waits()
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield waits
        output, _ = process.communicate("stop\n", timeout=END_S_MAX)
        assert process.returncode == 0
        for answered_s, used_s in json.loads(output):
            waits.answered_s.append(answered_s)
            waits.held_s.append(min(answered_s, used_s))
    finally:
        process.kill()
        process.wait()


def cpu_clock(pid: int) -> int:
    """The id of the clock that counts the processor time of all threads of a process, as clock_getcpuclockid(3)."""
    return ~pid << 3 | 2


def check_others_unaffected(broker: BrokerProcess, topic: str, attack: Callable[[], None]) -> None:
    """The best of three: waits under attack are at most twice those without it, give or take the floor."""
    seen = []
    for _ in range(ATTEMPTS):
        with innocent_client(broker, topic) as calm:
            time.sleep(CALM_S)
        with innocent_client(broker, topic) as attacked:
            attack()
        pairs = [(calm.p99_s(), attacked.p99_s()), (calm.median_s(), attacked.median_s())]
        if all(after <= 2 * before + FLOOR_S for before, after in pairs):
            return
        seen.append([(round(before, 4), round(after, 4)) for before, after in pairs])
    raise AssertionError(f"p99 held up, and median, each without and with the attack: {seen}")
