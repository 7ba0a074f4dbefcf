"""A disk of a few megabytes, in a mount namespace of its own.

A process holds the namespace; when it goes, by whatever way, the kernel takes the mount away. Nothing is ever mounted
where others see it.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_HOLD = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec cat'


class SmallDisk:
    def __init__(self, mount_point: Path, holder_pid: int, enter: list[str]) -> None:
        self.inside = mount_point  # As processes that have entered see it.
        self.outside = Path(f"/proc/{holder_pid}/root{mount_point}")  # As the test sees it.
        self.enter = enter  # Put before a command to run it inside.

    def free_bytes(self) -> int:
        stat = os.statvfs(self.outside)
        return stat.f_bavail * stat.f_frsize

    def fill(self, name: str, leave_bytes: int = 0) -> Path:
        """Take the space that is left, but for `leave_bytes`, with a file that nobody needs."""
        ballast = self.outside / name
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):  # A broker may be filling it, too.
            while (size := min(self.free_bytes() - leave_bytes, 64 << 10)) > 0:
                file.write(bytes(size))
        return ballast

    def take(self, name: str, size: int) -> Path:
        """Take `size` bytes with a file that nobody needs."""
        return self.fill(name, leave_bytes=self.free_bytes() - size)


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Skips the test, with the reason, on a machine that lets us make no mount at all."""
    refusals = []
    for options, enter_options in ((["-m"], ["-m"]), (["-r", "-m"], ["-U", "--preserve-credentials", "-m"])):
        command = ["unshare", *options, "sh", "-c", _HOLD, "sh", str(size_bytes), str(directory)]
        try:
            holder = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except FileNotFoundError as error:
            refusals.append(str(error))
            continue
        assert holder.stdout is not None
        if holder.stdout.readline().strip() == "mounted":
            try:
                yield SmallDisk(directory, holder.pid, ["nsenter", "-t", str(holder.pid), *enter_options, "--"])
            finally:
                holder.communicate()  # Closes its stdin, which ends it.
            return
        refusals.append(f"`{' '.join(command[:3])} …`: {holder.communicate()[1].strip()}")
    pytest.skip(f"NOT TESTED: a full disk. No small tmpfs could be mounted: {'; '.join(refusals)}")
