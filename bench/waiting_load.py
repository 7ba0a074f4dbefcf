"""Many consumers in a long poll, one producer: how soon all of them have what was sent, and at what cost.

Raw requests, because 500 clients of a real kind would take more of the machine than the broker does.
"""

import selectors
import socket
import struct
import time

from bench.latencies import Latencies
from bench.raw_load import ANSWER_S_MAX, RawClient, fetch_frame, fetched_records, produce_frame
from ports import HOST

RECORDS_PER_S = 20
WAIT_MS = 30_000


class _Waiting:
    """One consumer: asks for the next offset, and again when it was answered."""

    def __init__(self, port: int, topic: str) -> None:
        self.socket = socket.create_connection((HOST, port))
        self._topic = topic
        self._offset = 0
        self._received = bytearray()

    def ask(self) -> None:
        self.socket.sendall(fetch_frame(self._topic, self._offset, 1 << 20, max_wait_ms=WAIT_MS))

    def on_readable(self) -> bool:
        """Whether the whole answer has come."""
        received = self.socket.recv(65536)
        if not received:
            raise ConnectionError("the broker has closed the connection")
        self._received += received
        if len(self._received) < 4 or len(self._received) < 4 + struct.unpack_from(">i", self._received)[0]:
            return False
        answer = bytes(self._received[4:])
        self._received.clear()
        if not fetched_records(answer, self._topic):
            self.ask()  # Its time was over.
            return False
        self._offset += 1
        return True


def deliver_to_waiting(port: int, topic: str, *, consumers: int, seconds: float) -> Latencies:
    """From one record's sending to each of its deliveries; seconds are those in which something was on its way."""
    producer, frame = RawClient(port), produce_frame(topic, record_bytes=100, records=1)
    waiting = [_Waiting(port, topic) for _ in range(consumers)]
    samples_ns: list[int] = []
    busy_s = 0.0
    with selectors.DefaultSelector() as selector:
        for consumer in waiting:
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
            consumer.ask()
        time.sleep(0.5)  # All of them wait now.
        for _ in range(int(seconds * RECORDS_PER_S)):
            start = time.perf_counter()
            samples_ns += _deliver(producer, frame, selector, consumers)
            taken_s = time.perf_counter() - start
            busy_s += taken_s
            time.sleep(max(0.0, 1 / RECORDS_PER_S - taken_s))
    for consumer in waiting:
        consumer.socket.close()
    producer.close()
    return Latencies.of(samples_ns, busy_s)


def _deliver(producer: RawClient, frame: bytes, selector: selectors.BaseSelector, consumers: int) -> list[int]:
    """One record to all of them: the nanoseconds until each had it and had asked for the next."""
    start_ns, samples_ns = time.perf_counter_ns(), list[int]()
    producer.produce([frame])
    while len(samples_ns) < consumers:
        ready = selector.select(timeout=ANSWER_S_MAX)
        if not ready:
            raise TimeoutError(f"{len(samples_ns)} of {consumers} consumers were given the record")
        for key, _ in ready:
            if key.data.on_readable():
                samples_ns.append(time.perf_counter_ns() - start_ns)
                key.data.ask()
    return samples_ns
