"""kcat, the command-line client, through its standard input and output.

kcat has one set of headers, and one rule for empty keys and values (-Z: they are null), per invocation. So a partition
is produced as runs of records that agree in both; the corpus for kcat is made of few and long runs.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import groupby

import job_loop
from record_file import Record

# Several bytes each, so that random values do not contain them; below 0x80, because -f takes no others.
KEY_END, RECORD_END, HEADERS_END = b"\x1fK\x1d\x7f", b"\x1eR\x1c\x7f", b"\x1cH\x1b\x7f\x1c"


def _escaped(delimiter: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in delimiter)


FETCH_FORMAT = "%p %o %T %K %S\\n%k%s%h" + _escaped(HEADERS_END)


class KcatClient:
    def produce(self, topic: str, codec: str, records: list[Record]) -> None:
        # -p is per invocation too, so partitions go one after the other; order across them means nothing.
        for partition, of_partition in groupby(sorted(records, key=lambda r: r.partition), lambda r: r.partition):
            for (headers, nulls), run in groupby(of_partition, lambda r: (r.headers, _has_null(r))):
                options = ["-z", codec, "-X", "enable.idempotence=false", "-X", "request.required.acks=-1"]
                options += ["-D", _escaped(RECORD_END), "-K", _escaped(KEY_END)]
                options += ["-Z"] if nulls else []
                for name, value in headers:
                    options += ["-H", name if value is None else os.fsdecode(name.encode() + b"=" + value)]
                lines = [_line(record) for record in run]
                _kcat("-P", "-t", topic, "-p", str(partition), *options, stdin=b"".join(lines))

    def consume(self, topic: str, partition_count: int) -> Iterator[Record]:
        for partition in range(partition_count):
            output = _kcat(
                *("-C", "-q", "-e", "-t", topic, "-p", str(partition), "-o", "beginning"),
                *("-X", "auto.offset.reset=error", "-f", FETCH_FORMAT),
            )
            yield from _parsed(output)

    def topics(self) -> dict[str, int]:
        metadata = json.loads(_kcat("-L", "-J"))
        return {topic["topic"]: len(topic["partitions"]) for topic in metadata["topics"]}


def _has_null(record: Record) -> bool:
    return record.key is None or record.value is None


def _line(record: Record) -> bytes:
    key, value = record.key or b"", record.value or b""
    if _has_null(record):
        assert record.key != b"", "kcat cannot send an empty key beside a null"
        assert record.value != b"", "kcat cannot send an empty value beside a null"
    assert RECORD_END not in value and KEY_END not in key
    return key + KEY_END + value + RECORD_END


def _parsed(output: bytes) -> Iterator[Record]:
    position = 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        partition, offset, timestamp_ms, key_length, value_length = map(int, output[position:line_end].split())
        key_end = line_end + 1 + max(key_length, 0)
        value_end = key_end + max(value_length, 0)
        headers_end = output.index(HEADERS_END, value_end)
        key = None if key_length < 0 else output[line_end + 1 : key_end]
        value = None if value_length < 0 else output[key_end:value_end]
        yield Record(partition, offset, timestamp_ms, key, value, _headers(output[value_end:headers_end]))
        position = headers_end + len(HEADERS_END)


def _headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """kcat prints `name=value,name=NULL`; the corpus has no comma, and no value "NULL", in its headers."""
    pairs = (pair.split(b"=", 1) for pair in text.split(b",") if pair)
    return tuple((name.decode(), None if value == b"NULL" else value) for name, value in pairs)


def _kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    command = ["kcat", "-b", job_loop.bootstrap(), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=90, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kcat {' '.join(arguments)}: {done.stderr.decode(errors='replace')}")
    return done.stdout


if __name__ == "__main__":
    job_loop.run(KcatClient())
