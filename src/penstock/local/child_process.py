"""Processes that end with the one that started them, however that ends.

Linux only: elsewhere a parent that is killed with SIGKILL leaves its children behind.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def start_child(command: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
    """Start the command, its output appended to `log`. It is killed when the calling *thread* ends.

    It has a session of its own: Ctrl-C goes to us alone, and we say in which order things stop.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
        )


def _die_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # Looked up here: after a fork nothing may be loaded.

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It has gone in between, and no signal will come.
            os._exit(1)

    return before_exec
