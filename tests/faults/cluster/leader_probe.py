"""Who takes writes? Asks every broker for itself, all the time, whatever the metadata says of who leads.

A client that knows the leader never talks to a broker that merely believes to be it. The probe does: on a connection of
its own to each broker it sends one record with acks=all after the other to a partition, and keeps what was answered.
"""

import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from penstock.wire.batch import Record, build_batch

from .. import raw_client
from .broker_cluster import Broker

_PRODUCE = 0
PAUSE_S = 0.02
ANSWER_S_MAX = 20


class Answer(NamedTuple):
    node_id: int
    sent_at: float
    received_at: float
    code: int
    offset: int
    value: bytes


class LeaderProbe:
    def __init__(self, topic: str, brokers: Sequence[Broker]) -> None:
        self.answers: list[Answer] = []
        self._topic = topic
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(broker.node_id, broker.host, broker.port), daemon=True)
            for broker in brokers
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(ANSWER_S_MAX + 10)

    def _run(self, node_id: int, host: str, port: int) -> None:
        connection: socket.socket | None = None
        number = 0
        while not self._stopping.wait(PAUSE_S):
            number += 1
            try:
                if connection is None:
                    connection = socket.create_connection((host, port), timeout=ANSWER_S_MAX)
                self.answers.append(self._ask(connection, node_id, b"%d:%d" % (node_id, number)))
            except OSError:
                if connection is not None:
                    connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _ask(self, connection: socket.socket, node_id: int, value: bytes) -> Answer:
        sent_at = time.monotonic()
        connection.sendall(_produce(self._topic, value))
        code, offset = _parse(raw_client.receive(connection))
        return Answer(node_id, sent_at, time.monotonic(), code, offset, value)


def overlap_s(answers: Sequence[Answer], old: int) -> float:
    """For how long `old` certainly took writes after another broker had: 0 when one leader followed the other.

    Certainly: it was sent the last one that it took after the other's first one had been answered.
    """
    first = min((a.received_at for a in answers if a.node_id != old and a.code == 0), default=float("inf"))
    last = max((a.sent_at for a in answers if a.node_id == old and a.code == 0), default=0.0)
    return max(0.0, last - first)


def lost(answers: Sequence[Answer], records: Sequence[tuple[int, bytes]]) -> list[Answer]:
    """Taken, and not where they were said to be."""
    there = dict(records)
    return [answer for answer in answers if answer.code == 0 and there.get(answer.offset) != answer.value]


def _produce(topic: str, value: bytes) -> bytes:
    """Produce v3 with acks=all to partition 0."""
    batch = build_batch([Record(0, int(time.time() * 1000), None, value)], base_offset=0)
    name = topic.encode()
    body = struct.pack(">hhii", -1, -1, ANSWER_S_MAX * 1000, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    return raw_client.frame(_PRODUCE, 3, body)


def _parse(reply: bytes) -> tuple[int, int]:
    """Error code and offset, after correlation id, topic and partition."""
    (length,) = struct.unpack_from(">h", reply, 8)
    code, offset = struct.unpack_from(">hq", reply, 10 + length + 4 + 4)
    return code, offset
