"""Whose a data directory is.

A lock, for two brokers that append to one log would destroy it. And beside the logs of a cluster `meta.properties`, as
Kafka writes it: which cluster and which of its brokers they belong to, for the logs of one mean nothing in another.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType

from penstock.base.config import BrokerConfig
from penstock.storage.checkpoint import write_atomically
from penstock.storage.fs import FileSystem

META_PROPERTIES = "meta.properties"
EMBEDDED_METADATA = "metadata.db"  # Where a broker that is a whole cluster keeps it.


class DataDirInUse(Exception):
    """Another broker has the data directory."""


class DataDirForeign(Exception):
    """The data directory is of another broker, or of another cluster."""


def claim_data_dir(fs: FileSystem, config: BrokerConfig, cluster_id: str) -> None:
    """Write down that the directory is this broker's; DataDirForeign when it says otherwise already.

    A broker without ZooKeeper has its cluster in the directory, and only makes sure that it is not part of another.
    """
    path = f"{config.data_dir}/{META_PROPERTIES}"
    found = _read_properties(fs, path)
    if config.zookeeper_connect is None:
        if found is not None:
            raise DataDirForeign(f"it is of broker {found.get('node.id')} of a cluster on ZooKeeper")
        return
    if found is None:
        if fs.exists(f"{config.data_dir}/{EMBEDDED_METADATA}"):
            raise DataDirForeign(f"it is of a broker without ZooKeeper, whose topics are in {EMBEDDED_METADATA}")
        content = f"version=1\ncluster.id={cluster_id}\nnode.id={config.node_id}\n"
        write_atomically(fs, path, content.encode())
        return
    if found.get("cluster.id") != cluster_id:
        raise DataDirForeign(f"it is of the cluster {found.get('cluster.id')}, and this one is {cluster_id}")
    if found.get("node.id") != str(config.node_id):
        raise DataDirForeign(f"it is of broker {found.get('node.id')}, and this is broker {config.node_id}")


def _read_properties(fs: FileSystem, path: str) -> dict[str, str] | None:
    if not fs.exists(path):
        return None
    lines = fs.read_all(path).decode(errors="replace").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines if not line.startswith("#"))}


class DataDirLock:
    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._descriptor: int | None = None

    def __enter__(self) -> "DataDirLock":
        self._path.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise DataDirInUse(f"another broker is using {self._path}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)  # The kernel drops the lock with it, also after kill -9.
