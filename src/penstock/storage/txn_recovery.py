"""Opening a log: which of its indexes of aborted transactions are whole.

An entry reaches the disk with its marker, so below the recovery point they are whole, unless a file is damaged or gone.
From there on they may lack entries, or have some of records that were cut off: those go, and whoever replays the log
for its producers makes them anew (partition/producer_files.py). It has the state that this takes.
"""

from penstock.base.logging import get_logger
from penstock.base.types import Offset
from penstock.storage.format import TXN_INDEX_SUFFIX, base_offset_of
from penstock.storage.fs import FileSystem
from penstock.storage.index import BadIndex
from penstock.storage.log import Log
from penstock.storage.segment import Segment

log = get_logger(__name__)


def check_txn_indexes(partition_log: Log, fs: FileSystem, names: list[str], *, trusted_end: Offset) -> None:
    """Note in the log from where on aborted transactions are missing. `trusted_end`: below it files were synced.

    `names`: what the directory had before the log was opened.
    """
    if any(name.endswith(TXN_INDEX_SUFFIX) for name in names):
        names = fs.listdir(partition_log.directory)  # Segments may have gone since.
    stored = {base for name in names if name.endswith(TXN_INDEX_SUFFIX) and (base := base_offset_of(name)) is not None}
    for base in stored.difference(segment.base_offset for segment in partition_log.segments):
        # Of a segment that went away: a new one in its place would take it for its own.
        fs.remove(f"{partition_log.directory}/{base:020d}{TXN_INDEX_SUFFIX}")
        stored.discard(base)
    partition_log.has_transactions = bool(stored)
    missing_from = min(trusted_end, _first_unsound(partition_log, stored, trusted_end))
    for segment in partition_log.segments:
        if segment.base_offset in stored and segment.base_offset >= missing_from:
            segment.restore_txn_index(segment.base_offset, [])  # Nothing in it can be believed.
    if missing_from < partition_log.log_end:
        partition_log.aborts_missing_from = max(missing_from, partition_log.segments[0].base_offset)


def _first_unsound(partition_log: Log, stored: set[Offset], trusted_end: Offset) -> Offset:
    """The base offset of the first segment whose index is damaged or missing; the log's end when there is none."""
    segments = partition_log.segments
    ends = [segment.base_offset for segment in segments[1:]] + [partition_log.log_end]
    first = min(stored, default=None)
    for segment, end in zip(segments, ends, strict=True):
        if first is None or segment.base_offset < first or segment.base_offset >= trusted_end:
            continue
        reason = "it is missing" if segment.base_offset not in stored else _problem(segment, end, trusted_end)
        if reason is not None:
            log.warning("transaction index is made anew", segment=segment.path(), reason=reason)
            return segment.base_offset
    return partition_log.log_end


def _problem(segment: Segment, end: Offset, trusted_end: Offset) -> str | None:
    index = segment.stored_txn_index()
    if trusted_end < end:
        index.truncate(trusted_end)
    try:
        index.check(segment.base_offset, end)
    except BadIndex as error:
        return str(error)
    return None
