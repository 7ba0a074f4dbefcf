"""The broker under test: Penstock processes of our own, one or a cluster, or one that runs somewhere already."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from broker_cluster import BrokerCluster
from broker_process import STOP_S_MAX
from ports import wait_until_closed

__all__ = ["Broker", "BrokerCluster", "ExternalBroker", "addresses"]


class Broker(Protocol):
    bootstrap: str  # As clients take it: the addresses of all brokers, with commas between.
    log_dirs: Sequence[Path]  # One a broker. Empty: not on this machine, or nobody told us where.
    replication_factor: int  # Of topics that do not say.
    min_insync_replicas: int

    def check_alive(self) -> None: ...
    def stop(self) -> object: ...


def addresses(broker: Broker) -> list[str]:
    return broker.bootstrap.split(",")


class ExternalBroker:
    """A broker that runs already, at PENSTOCK_COMPAT_BOOTSTRAP=host:port.

    PENSTOCK_COMPAT_DATA is its log directory, for DumpLogSegments. Kafka pads the indexes of its newest segments until
    it stops, so PENSTOCK_COMPAT_PID says which process to stop before they are read.
    """

    replication_factor = min_insync_replicas = 1

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        data, pid = os.environ.get("PENSTOCK_COMPAT_DATA"), os.environ.get("PENSTOCK_COMPAT_PID")
        self.log_dirs = [Path(data)] if data and pid else []
        self._pid = int(pid) if pid else None

    def check_alive(self) -> None:
        pass

    def stop(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGTERM)
            self._pid = None
            port = int(self.bootstrap.rsplit(":", 1)[1])
            assert wait_until_closed(port, STOP_S_MAX), f"{self.bootstrap} still answers"
