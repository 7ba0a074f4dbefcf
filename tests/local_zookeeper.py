"""A real ZooKeeper for tests: its jars from Maven Central and its Java from wherever the compat suite finds one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat.missing_parts import skip_when_missing
from compat.parts.cache import REPO_ROOT
from compat.parts.java import java
from penstock.local.zookeeper import ZooKeeperEnsemble
from penstock.local.zookeeper_jars import zookeeper_jars
from ports import free_port


@contextmanager
def zookeeper_ensemble(directory: Path, nodes: int = 1, *, ends_with_us: bool = False) -> Iterator[ZooKeeperEnsemble]:
    """Serving inside the block, gone after it. Where it cannot be had the test is skipped, and that is said loudly."""
    with skip_when_missing("ZooKeeper"):
        program, jars = java(), zookeeper_jars(REPO_ROOT / ".cache")
    parts = {"java": program, "jars": jars, "free_port": free_port}
    with ZooKeeperEnsemble(directory, nodes=nodes, ends_with_us=ends_with_us, **parts) as ensemble:
        yield ensemble
