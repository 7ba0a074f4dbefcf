"""Which build of Penstock this is: pure Python, or with its hot path compiled (hatch_build.py)."""

from importlib.util import find_spec

from penstock import __version__


def is_compiled() -> bool:
    spec = find_spec("penstock.wire.batch")
    return spec is not None and not str(spec.origin).endswith(".py")


def full_version() -> str:
    return f"{__version__} (compiled)" if is_compiled() else __version__
