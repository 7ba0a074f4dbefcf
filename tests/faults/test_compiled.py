"""The brokers that are killed here are of the build that a wheel has: their hot path is compiled (`make test`)."""

import subprocess
import sys

from compat.missing_parts import skip_when_missing
from compat.parts.cache import PartMissing
from penstock.base.build import is_compiled


def test_the_brokers_of_this_run_are_compiled() -> None:
    with skip_when_missing("the compiled build"):
        if not is_compiled():
            raise PartMissing("`make test` compiles it; that takes a C compiler and Python's headers")
    command = [sys.executable, "-m", "penstock.cli.main", "--version"]
    assert "(compiled)" in subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60).stdout
