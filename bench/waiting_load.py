"""Many consumers in a long poll, one producer: how soon all of them have what was sent, and at what cost.

Raw requests, because 500 clients of a real kind would take more of the machine than the broker does.
"""

import selectors
import socket
import statistics
import struct
import time
from typing import NamedTuple

from bench.raw_load import RawClient, fetch_frame, fetched_records

RECORDS_PER_S = 20
WAIT_MS = 30_000


class Delivered(NamedTuple):
    count: int
    p50_ms: float
    p99_ms: float


class _Waiting:
    """One consumer: asks for the next offset, and again when it was answered."""

    def __init__(self, port: int, topic: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._topic = topic
        self._offset = 0
        self._received = bytearray()

    def ask(self) -> None:
        self.socket.sendall(fetch_frame(self._topic, self._offset, 1 << 20, max_wait_ms=WAIT_MS))

    def on_readable(self) -> bool:
        """Whether the whole answer has come."""
        self._received += self.socket.recv(65536)
        if len(self._received) < 4 or len(self._received) < 4 + struct.unpack_from(">i", self._received)[0]:
            return False
        answer = bytes(self._received[4:])
        self._received.clear()
        if not fetched_records(answer, self._topic):
            self.ask()  # Its time was over.
            return False
        self._offset += 1
        return True


def deliver_to_waiting(port: int, topic: str, *, consumers: int, seconds: float) -> Delivered:
    producer = RawClient(port)
    selector = selectors.DefaultSelector()
    waiting = [_Waiting(port, topic) for _ in range(consumers)]
    for consumer in waiting:
        selector.register(consumer.socket, selectors.EVENT_READ, consumer)
        consumer.ask()
    time.sleep(0.5)  # All of them wait now.
    latencies: list[float] = []
    rounds = int(seconds * RECORDS_PER_S)
    for _ in range(rounds):
        start = time.perf_counter()
        producer.produce(topic, 100, 1, 1, 1)
        missing = consumers
        while missing:
            for key, _ in selector.select(timeout=10):
                if key.data.on_readable():
                    latencies.append(time.perf_counter() - start)
                    missing -= 1
                    key.data.ask()
        time.sleep(max(0.0, start + 1 / RECORDS_PER_S - time.perf_counter()))
    for consumer in waiting:
        consumer.socket.close()
    producer.close()
    cuts = statistics.quantiles(latencies, n=100)
    return Delivered(len(latencies), cuts[49] * 1000, cuts[98] * 1000)
