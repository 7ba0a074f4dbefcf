"""Packages from PyPI in a folder of their own, so that the project's .venv stays as its lock file says."""

import sys
from functools import cache
from pathlib import Path

from .cache import CLIENTS, cached
from .command import run

KAFKA_PYTHON_CODECS = CLIENTS / "python" / "requirements.txt"


@cache
def wheel(requirement: str) -> Path:
    """The folder with `name==version` unpacked in it."""
    name = requirement.split("==")[0]
    return cached(name, [requirement, _interpreter()], lambda target: _pip(target, "--no-deps", requirement))


@cache
def kafka_python_codecs() -> Path:
    inputs = [KAFKA_PYTHON_CODECS, _interpreter()]
    return cached(
        "kafka-python-codecs", inputs, lambda into: _pip(into, "--require-hashes", "-r", str(KAFKA_PYTHON_CODECS))
    )


def _pip(target: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    run([*pip, "--only-binary=:all:", "--no-compile", "--target", str(target), *arguments])


def _interpreter() -> str:
    return f"{sys.implementation.cache_tag}-{sys.platform}"
