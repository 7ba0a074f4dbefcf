"""A disk for a broker that loses what was not synced when its power is cut: a process that serves it (lossy_mount.py).

It is mounted in a mount namespace of that process, and reached through /proc: nothing is ever mounted where others see
it, and when the process goes, by whatever way, so does the mount.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from compat.parts.cache import PartMissing
from compat.parts.system import from_path_or_apt

from .ends_with_us import ENDS_WITH_US

_MOUNT = Path(__file__).with_name("lossy_mount.py")


class Loss(NamedTuple):
    """By one power cut, or by several."""

    unsynced_bytes: int = 0
    lost_bytes: int = 0  # Not all of these: some reach the disk in time. And all of a file that lost its name.
    lost_names: int = 0  # Of files that were made, renamed or removed.

    @staticmethod
    def sum(losses: Iterable["Loss"]) -> "Loss":
        return Loss(*map(sum, zip(Loss(), *losses, strict=True)))

    def __str__(self) -> str:
        return f"{self.unsynced_bytes:,} bytes were unsynced, {self.lost_bytes:,} lost, with {self.lost_names} names"


class LossyDisk:
    """Use `lossy_disk`."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self._process = process

    def cut_power(self) -> Loss:
        """Lose what was not synced. Whoever writes to the disk must be dead."""
        return Loss(**self._ask("cut"))

    def fail_syncs(self) -> None:
        """Answer every sync with EIO from now on."""
        self._ask("fail")

    def mend_syncs(self) -> None:
        self._ask("mend")

    def _ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return _answer(self._process)


@contextmanager
def lossy_disk(mount_point: Path, seed: int) -> Iterator[LossyDisk]:
    """Empty. PartMissing where there is no FUSE, or no right to mount."""
    _require_fuse()
    mount_point.mkdir()
    errors = mount_point.with_suffix(".stderr")
    command = [*ENDS_WITH_US, "unshare", "--mount", sys.executable, str(_MOUNT), str(mount_point), str(seed)]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        try:
            _answer(process)
        except EOFError:
            assert "Traceback" not in errors.read_text(), errors.read_text()
            raise PartMissing(f"no FUSE mount: {errors.read_text().strip()[-500:]}") from None
        yield LossyDisk(Path(f"/proc/{process.pid}/root{mount_point}"), process)
        assert "Uncaught" not in errors.read_text(), errors.read_text()[-5000:]
    finally:
        process.kill()
        process.communicate()


def _require_fuse() -> None:
    if sys.platform != "linux":
        raise PartMissing("only Linux has the namespaces that hide our mounts")
    if os.geteuid() != 0:
        raise PartMissing("only root may mount")
    if not Path("/dev/fuse").exists():
        raise PartMissing("there is no /dev/fuse")
    from_path_or_apt("fusermount3", "fuse3")  # It brings the library that mfusepy looks for.


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise EOFError
    return json.loads(line)
