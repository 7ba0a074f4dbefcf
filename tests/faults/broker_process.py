"""A broker that is stopped in every way there is, and held to the time that it takes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import broker_process


class Start(NamedTuple):
    """Seconds from exec to the first answer, and how many of them a processor was wanted but others had it."""

    seconds: float
    queued_s: float

    @property
    def own_s(self) -> float:
        """What the start would have taken on a machine of its own: what a test on a shared one can hold us to."""
        return self.seconds - self.queued_s


class BrokerProcess(broker_process.BrokerProcess):
    def start(self) -> Start:  # type: ignore[override]
        """Start, and wait for the first answer."""
        seconds = super().start()
        return Start(seconds, self._queued_s())

    @property
    def pid(self) -> int:
        """Of the broker itself, also when strace runs it."""
        if "strace" not in self.wrapper:
            return super().pid
        children = Path(f"/proc/{super().pid}/task/{super().pid}/children").read_text().split()
        return int(children[0]) if children else super().pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def _queued_s(self) -> float:
        schedstat = Path(f"/proc/{self.pid}/schedstat")  # Of the main thread, which does all the work of a start.
        return int(schedstat.read_text().split()[1]) / 1e9 if schedstat.exists() else 0.0


@contextmanager
def running(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """Start the broker if it is not running; whatever happens, it is gone at the end."""
    try:
        if not broker.is_running():
            broker.start()
        yield broker
    finally:
        broker.kill()
