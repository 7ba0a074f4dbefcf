"""What others feel of an attack: the produce latency of an innocent client, with it and without it."""

import json
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


@contextmanager
def innocent_client(port: int, topic: str) -> Iterator[list[float]]:
    """Produces one small batch after the other. The latencies that it saw are in the list once the block has ended.

    With acks=1: what a sync takes depends on who else uses the disk.
    """
    fields = produce_fields([(topic, 0, batch_of(b"x" * 100))], acks=1)
    request = framed(request_frame(ApiKey.PRODUCE, 9, Struct(**fields)))
    # Of the reply: correlation id, tags, topics, name, partitions and index come before the error code.
    error_position = 4 + 1 + 1 + 1 + len(topic) + 1 + 4
    command = [sys.executable, str(INNOCENT), str(port), str(error_position), request.hex()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    latencies_s: list[float] = []
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield latencies_s
        output, _ = process.communicate("stop\n", timeout=END_S_MAX)
        assert process.returncode == 0
        latencies_s += json.loads(output)
    finally:
        process.kill()
        process.wait()


def p99(latencies_s: list[float]) -> float:
    assert latencies_s
    return sorted(latencies_s)[min(len(latencies_s) - 1, int(len(latencies_s) * 0.99))]


def check_others_unaffected(broker: BrokerProcess, topic: str, attack: Callable[[], None]) -> None:
    """The best of three: p99 under attack is at most twice that without it, give or take the floor."""
    seen = []
    for _ in range(ATTEMPTS):
        with innocent_client(broker.port, topic) as calm:
            time.sleep(CALM_S)
        with innocent_client(broker.port, topic) as attacked:
            attack()
        seen.append((p99(calm), p99(attacked)))
        if p99(attacked) <= 2 * p99(calm) + FLOOR_S:
            return
    raise AssertionError(f"p99 without and with the attack: {[(round(a, 4), round(b, 4)) for a, b in seen]}")
