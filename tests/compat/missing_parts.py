"""What this machine could not offer, so that a run without a client never looks like a run with it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.local import java

from .parts.cache import PartMissing

PART_MISSING = "COMPAT PART MISSING: "


@contextmanager
def skip_when_missing(part: str) -> Iterator[None]:
    """Skip, and be loud about it at the end. With PENSTOCK_COMPAT_STRICT=1 (in CI) it is a failure."""
    try:
        yield
    except (PartMissing, java.PartMissing) as error:
        if os.environ.get("PENSTOCK_COMPAT_STRICT"):
            raise
        pytest.skip(f"{PART_MISSING}{part}: {str(error).splitlines()[0]}")


def missing_parts(terminalreporter: pytest.TerminalReporter) -> list[str]:
    """Read from the reports, which come from all processes that ran tests."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = (report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple))
    return sorted({reason.partition(PART_MISSING)[2] for reason in reasons if PART_MISSING in reason})
