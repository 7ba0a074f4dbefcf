"""Are the records that a client read the ones that were written?"""

from itertools import zip_longest
from pathlib import Path

from .clients.python.record_file import Record, read_records

DIFFERENCES_SHOWN_MAX = 5


def assert_same_records(read: Path, expected: Path, *, with_timestamps: bool) -> None:
    """Keys, values, headers, offsets and order; timestamps where the producer could set them."""
    if with_timestamps and read.read_bytes() == expected.read_bytes():
        return
    differences = []
    for got, wanted in zip_longest(read_records(read), read_records(expected)):
        if got is not None and wanted is not None and not with_timestamps:
            got = got._replace(timestamp_ms=wanted.timestamp_ms)
        if got != wanted:
            differences.append(f"expected {_shown(wanted)}\n     got {_shown(got)}")
            if len(differences) == DIFFERENCES_SHOWN_MAX:
                break
    assert not differences, f"{read.name} differs from {expected.name}:\n" + "\n".join(differences)


def _shown(record: Record | None) -> str:
    if record is None:
        return "nothing more"
    place = f"{record.partition}@{record.offset} time {record.timestamp_ms}"
    return f"{place} key {_short(record.key)} value {_short(record.value)} headers {record.headers!r:.200}"


def _short(data: bytes | None) -> str:
    return repr(data) if data is None or len(data) <= 40 else f"{data[:40]!r}... ({len(data)} bytes)"
