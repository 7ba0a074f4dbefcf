"""What is in segment files, as lines for people or JSON for programs."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.cli.log_files import Step, entries, opened, steps
from penstock.cli.messages import StoredMessage, shown_text, to_json
from penstock.cli.output import Lines, dump_json, local_time
from penstock.storage.format import (
    LOG_SUFFIX,
    OFFSET_ENTRY,
    OFFSET_INDEX_SUFFIX,
    TIME_ENTRY,
    TXN_ENTRY,
    TXN_INDEX_SUFFIX,
    parse_partition_directory,
)
from penstock.storage.txn_index import TxnIndex
from penstock.wire.batch import BatchHeader, CorruptBatch, Record, records_of
from penstock.wire.compression import Codec, TooLarge
from penstock.wire.txn_marker import read_marker

DECOMPRESSED_BYTES_MAX = 256 << 20  # Of one batch; brokers accept far less, so more than this is no honest batch.


def dump_file(path: Path, *, with_records: bool, as_json: bool) -> int:
    """Prints the file; how many parts of it are damaged."""
    if path.suffix == LOG_SUFFIX:
        return _dump_log(path, with_records=with_records, as_json=as_json)
    if path.suffix == OFFSET_INDEX_SUFFIX:
        return _dump_offset_index(path, as_json)
    if path.suffix == TXN_INDEX_SUFFIX:
        return _dump_txn_index(path, as_json)
    return _dump_time_index(path, as_json)


# Logs

_BATCH_LINES = Lines(
    [
        ("POSITION", 10),
        ("OFFSETS", -17),
        ("RECORDS", 7),
        ("BYTES", 9),
        ("CODEC", -6),
        ("NEWEST", -23),
        ("EPOCH", 5),
        ("PRODUCER", -8),
        ("CHECKS", -6),
    ]
)


def _dump_log(path: Path, *, with_records: bool, as_json: bool) -> int:
    damaged = 0
    with opened(path) as (read, size):
        if not as_json:
            print(_BATCH_LINES.header_row)
        for step in steps(read, size, int(path.stem)):
            damaged += step.problem is not None
            records = _records(step) if with_records else None
            if as_json:
                print(dump_json(_batch_json(path, step, records)))
            else:
                print(_batch_row(step))
                for record in records or ():
                    print(_record_row(record))
    return damaged


def _records(step: Step) -> Iterator[Record]:
    """The batch's records as far as they can be read."""
    if step.found is None:
        return
    try:
        yield from records_of(step.found.view, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    except (CorruptBatch, TooLarge) as error:
        sys.stdout.flush()
        print(f"       the records at position {step.position} cannot be read: {error}", file=sys.stderr)


def _batch_row(step: Step) -> str:
    header = step.header
    if header is None:
        return f"{step.position:>10}  {step.problem}"
    checks = step.problem or "ok"
    if header.is_control:
        checks += f", {_control_name(step)}"
    elif header.is_transactional:
        checks += ", transactional"
    return _BATCH_LINES.row(
        (
            step.position,
            f"{header.base_offset}-{header.last_offset}",
            header.records_count,
            header.size,
            _codec_name(header),
            local_time(header.max_timestamp),
            header.partition_leader_epoch,
            "-" if header.producer_id < 0 else f"{header.producer_id}:{header.producer_epoch}:{header.base_sequence}",
            checks,
        )
    )


def _record_row(record: Record) -> str:
    headers = "".join(f"  {shown_text(name.encode())}={shown_text(value)}" for name, value in record.headers)
    key, value = shown_text(record.key), shown_text(record.value)
    return f"{'':>10}  {record.offset}  {local_time(record.timestamp)}  {key}  {value}{headers}"


def _batch_json(path: Path, step: Step, records: Iterator[Record] | None) -> dict[str, Any]:
    shape: dict[str, Any] = {"file": str(path), "position": step.position, "problem": step.problem}
    header = step.header
    if header is not None:
        shape |= {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "records_count": header.records_count,
            "bytes": header.size,
            "codec": _codec_name(header),
            "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "timestamp_type": "append" if header.is_log_append_time else "create",
            "leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "is_transactional": header.is_transactional,
            "is_control": header.is_control,
        }
        if header.is_control:
            shape["control"] = _control_name(step)
    if records is not None:
        shape["records"] = [to_json(_stored(path, record)) for record in records]
    return shape


def _stored(path: Path, record: Record) -> StoredMessage:
    """As `consume --json` shows it, so that a log can be sent again with `produce --format json`."""
    at = parse_partition_directory(path.absolute().parent.name)
    topic, partition = (at.topic, at.partition) if at else ("", 0)
    return StoredMessage(topic, partition, record.offset, record.timestamp, record.key, record.value, record.headers)


def _control_name(step: Step) -> str:
    """What a control batch does."""
    try:
        marker = read_marker(step.found.view) if step.found else None
    except (CorruptBatch, TooLarge):
        marker = None
    return "control" if marker is None else "commit" if marker.is_commit else "abort"


def _codec_name(header: BatchHeader) -> str:
    try:
        return Codec(header.codec).name.lower()
    except ValueError:
        return f"?{header.codec}"


# Indexes


def _dump_offset_index(path: Path, as_json: bool) -> int:
    lines = Lines([("OFFSET", 20), ("POSITION", 10)])
    with opened(path) as (read, size):
        if not as_json:
            print(lines.header_row)
        for relative, position in entries(read, size, OFFSET_ENTRY):
            offset = int(path.stem) + relative
            if as_json:
                print(dump_json({"file": str(path), "offset": offset, "position": position}))
            else:
                print(lines.row((offset, position)))
    return int(size % OFFSET_ENTRY.size > 0)


def _dump_time_index(path: Path, as_json: bool) -> int:
    lines = Lines([("TIMESTAMP", 14), ("TIME", -23), ("OFFSET", 20)])
    with opened(path) as (read, size):
        if not as_json:
            print(lines.header_row)
        for timestamp, relative in entries(read, size, TIME_ENTRY):
            offset = int(path.stem) + relative
            if as_json:
                print(dump_json({"file": str(path), "timestamp": timestamp, "offset": offset}))
            else:
                print(lines.row((timestamp, local_time(timestamp), offset)))
    return int(size % TIME_ENTRY.size > 0)


def _dump_txn_index(path: Path, as_json: bool) -> int:
    lines = Lines([("PRODUCER", 20), ("FIRST", 20), ("MARKER", 20), ("LAST STABLE", 20)])
    with opened(path) as (read, size):
        if not as_json:
            print(lines.header_row)
        for aborted in TxnIndex(read(0, size)):
            if as_json:
                print(dump_json({"file": str(path), **aborted._asdict()}))
            else:
                print(lines.row(aborted))
    return int(size % TXN_ENTRY.size > 0)
