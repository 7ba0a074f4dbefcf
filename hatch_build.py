"""Wheels with the hot path compiled by mypyc: `PENSTOCK_COMPILE=1 pip wheel .`. Without it they are pure Python.

The same source and the same behaviour, in less time (docs/adr/0006). The sources are in the wheel as well, so that
tracebacks show them.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What every Produce and Fetch goes through. Beyond these there is little to gain, and each takes seconds to compile.
MODULES = (
    "base/clock", "base/timers", "base/topic_config",
    "wire/batch", "wire/fetch", "wire/fetch_request", "wire/fields", "wire/framing",
    "wire/produce", "wire/record_walk", "wire/varint",
    "storage/flush", "storage/fs", "storage/group_commit", "storage/index",
    "storage/journal", "storage/journal_format", "storage/log", "storage/log_slice",
    "storage/scan", "storage/segment", "storage/segment_indexes",
    "partition/batch_check", "partition/epoch_checkpoint", "partition/fetcher", "partition/leader_epochs",
    "partition/manager", "partition/partition", "partition/producer_files", "partition/producer_state",
    "partition/replica_state", "partition/transactions", "partition/waiters",
    "server/connection", "server/dispatch", "server/fetch_session", "server/listener", "server/outbox", "server/peer",
    "server/prepared_fetch", "server/handlers/fetch", "server/handlers/produce",
)  # fmt: skip

# Types are checked by `make check`, with all libraries at hand; here they are only used.
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
setup(name="penstock", packages=[], ext_modules=mypycify([*options, *sys.argv[1:]], opt_level="2"),
      script_args=["--quiet", "build_ext", "--inplace"])
"""

_CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]+)(?:: ([^=\n]+))? = (?!TypeVar)", re.MULTILINE)
_FIRST = re.compile(r"^(?=import |from |_?[A-Z][A-Z0-9_]+: Final)", re.MULTILINE)


def _with_final_constants(source: str) -> str:
    """To the compiler a constant is then a number or a pointer; else it is looked up by its name each time."""
    final = _CONSTANT.sub(lambda found: f"{found[1]}: Final{f'[{found[2]}]' if found[2] else ''} = ", source)
    return source if final == source else _FIRST.sub("from typing import Final; ", final, count=1)


class CustomBuildHook(BuildHookInterface):
    @property
    def _is_wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("PENSTOCK_COMPILE") == "1"

    @property
    def _place(self) -> Path:
        return Path(self.directory, "compiled")

    def dependencies(self) -> list[str]:
        return ["mypy[mypyc]>=2.0", "setuptools>=77"] if self._is_wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._is_wanted or version == "editable":
            return
        place = self._place
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(Path(self.root, "src"), place, ignore=shutil.ignore_patterns("__pycache__"))
        for path in place.rglob("*.py"):
            path.write_text(_with_final_constants(path.read_text()))
        files = [f"penstock/{name}.py" for name in MODULES]
        subprocess.run([sys.executable, "-c", _SETUP, *files], cwd=place, check=True)
        # Not in build/, where the compiler leaves a copy of each.
        made = [*place.glob("*.so"), *(place / "penstock").rglob("*.so")]
        build_data["force_include"].update({str(path): str(path.relative_to(place)) for path in made})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._is_wanted:
            shutil.rmtree(self._place, ignore_errors=True)
