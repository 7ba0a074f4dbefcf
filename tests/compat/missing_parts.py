"""What this machine could not offer, so that a run without a client never looks like a run with it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.local import java

from .parts.cache import PartMissing

MISSING: dict[str, str] = {}


@contextmanager
def skip_when_missing(part: str) -> Iterator[None]:
    """Skip, and be loud about it at the end. With PENSTOCK_COMPAT_STRICT=1 (in CI) it is a failure."""
    try:
        yield
    except (PartMissing, java.PartMissing) as error:
        MISSING[part] = str(error)
        if os.environ.get("PENSTOCK_COMPAT_STRICT"):
            raise
        pytest.skip(f"COMPAT PART MISSING: {part}: {str(error).splitlines()[0]}")
