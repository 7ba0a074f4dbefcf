"""The broker under test: a Penstock process of our own, or one that already runs somewhere."""

import os
import signal
from pathlib import Path
from typing import Protocol

from broker_process import STOP_S_MAX, BrokerProcess
from ports import wait_until_closed

__all__ = ["Broker", "BrokerProcess", "ExternalBroker"]


class Broker(Protocol):
    bootstrap: str
    data: Path | None  # None: not on this machine, or nobody told us where.

    def check_alive(self) -> None: ...
    def stop(self) -> object: ...


class ExternalBroker:
    """A broker that runs already, at PENSTOCK_COMPAT_BOOTSTRAP=host:port.

    PENSTOCK_COMPAT_DATA is its log directory, for DumpLogSegments. Kafka pads the indexes of its newest segments until
    it stops, so PENSTOCK_COMPAT_PID says which process to stop before they are read.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        data, pid = os.environ.get("PENSTOCK_COMPAT_DATA"), os.environ.get("PENSTOCK_COMPAT_PID")
        self.data = Path(data) if data and pid else None
        self._pid = int(pid) if pid else None

    def check_alive(self) -> None:
        pass

    def stop(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGTERM)
            self._pid = None
            port = int(self.bootstrap.rsplit(":", 1)[1])
            assert wait_until_closed(port, STOP_S_MAX), f"{self.bootstrap} still answers"
