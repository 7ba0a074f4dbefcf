"""What a client in Python gets out of a server: the same questions to each, whatever its protocol."""

import abc
from typing import NamedTuple

from bench.latencies import Latencies


class Moved(NamedTuple):
    count: int
    seconds: float


class ClientLoad(abc.ABC):
    def __init__(self, port: int) -> None:
        self._port = port

    @abc.abstractmethod
    def create(self, stream: str) -> None: ...

    @abc.abstractmethod
    def delete(self, stream: str) -> None: ...

    @abc.abstractmethod
    def produce(self, stream: str, record_bytes: int, seconds: float) -> Moved:
        """From the first record to the last answer; none are begun after `seconds`."""

    @abc.abstractmethod
    def consume(self, stream: str, count: int, seconds: float) -> Moved:
        """From the stream's start to record `count`, or as far as `seconds` go."""

    @abc.abstractmethod
    def at_rate(self, stream: str, rate: int, seconds: float) -> Latencies:
        """From one client to another that waits for them, each record sent on its own."""
