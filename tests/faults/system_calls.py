"""Making system calls of a broker fail or slow, with strace.

strace counts for each thread on its own: `when=30` is the thirtieth call of every thread. What it injects does not
happen: a write that "fails" writes nothing, a sync that "fails" syncs nothing.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_LINE = re.compile(r"^(?:\d+ +)?(\d+\.\d+) (?!.*ENOSYS).*\(INJECTED\)")


def require_strace() -> None:
    """Skips the test, with the reason, where strace is missing and cannot be had, or may not trace."""
    if shutil.which("strace") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip("NOT TESTED: failing system calls. There is no strace, and only root could install it")
        install = "apt-get install -y strace || (apt-get update && apt-get install -y strace)"
        done = subprocess.run(["sh", "-c", install], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            pytest.skip(f"NOT TESTED: failing system calls. strace cannot be installed: {done.stderr.strip()[-300:]}")
    done = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", "trace=fdatasync", "true"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: failing system calls. strace may not trace here: {done.stderr.strip()[-300:]}")


def injecting(output: Path, calls: str, effect: str, *, paths: Sequence[Path] = (), absent: str = "") -> list[str]:
    """The command to put before the broker's: `effect` on `calls`, on all files or on those of `paths` only.

    `absent`: calls that the system shall not have.
    """
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-ttt", "-o", str(output)]
    command += ["-e", f"trace={calls},{absent}" if absent else f"trace={calls}", "-e", f"inject={calls}:{effect}"]
    if absent:
        command += ["-e", f"inject={absent}:error=ENOSYS"]
    for path in paths:
        command += ["-P", str(path)]
    return command


def injected_at(output: Path) -> list[float]:
    """When the injected calls began, in seconds since the epoch."""
    matches = map(_LINE.match, output.read_text(errors="replace").splitlines())
    return [float(match.group(1)) for match in matches if match is not None]
