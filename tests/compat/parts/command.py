"""Run one step of fetching or building; when it fails, say which and show the end of what it printed."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .cache import PartMissing

STEP_S_MAX = 600  # First run: downloads about 60 MB of jars, 75 MB of Go when it is not there, and compiles.


def run(
    command: list[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    failure: type[Exception] = PartMissing,
) -> str:
    """What the command printed. `failure` is for steps whose failing is our own fault, such as compiling our code."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=STEP_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise failure(f"{Path(command[0]).name}: {error}") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise failure(f"`{' '.join([Path(command[0]).name, *command[1:6]])}` exited {done.returncode}:\n{tail}")
    return done.stdout
