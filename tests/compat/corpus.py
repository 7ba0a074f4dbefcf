"""The records that every client writes and must read back: the same on every machine, for every run.

Mostly small, and all the shapes that have broken clients or brokers before: no key, no value, empty, one byte,
headers without a value, names and text that are not ASCII, and values of up to 900 KB that do and do not compress.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .clients.python.record_file import Record, in_log_order, write_records

PARTITION_COUNT = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VALUE_BYTES_MAX = 900 * 1024

# Fixed, so that two runs write the same bytes. Topics for it need retention.ms=-1: it lies in the past.
FIRST_TIMESTAMP_MS = 1_700_000_000_000

# Duplicates stand side by side, because kafkajs keeps headers in a map of lists. No commas, zero bytes or "NULL":
# kcat's only way to print headers is name=value,name=value.
HEADER_SETS: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
    (),
    (("trace-id", b"4bf92f3577b34da6a3ce929d0e0e4736"), ("content-type", b"application/json; charset=utf-8")),
    (("no-value", None), ("empty", b""), ("grüße-世界", "Prüfsumme: ✓ 🚰".encode())),
    (("repeated", b"first"), ("repeated", b"second"), ("binary", bytes(range(1, 44)) + bytes(range(45, 256)))),
    (("long", b"x" * 3000),),
)

_WORDS = ("pump", "valve", "weir", "turbine", "sluice", "flow", "head", "surge", "Düse", "débit", "水車", "насос", "🌊")


@dataclass(frozen=True)
class CorpusLimits:
    """What a client's producer cannot send. Every client reads everything."""

    null_header_values: bool = True
    null_key_with_null_value: bool = True
    headers_per_record: bool = True  # Else long stretches of a partition share their headers and their shape.


@dataclass(frozen=True)
class Corpus:
    """Two files with the same records: in the order to send them, and as a partition's log must show them."""

    to_send: Path
    as_logged: Path
    record_count: int


def write_corpus(path: Path, *, codec: str, record_count: int, limits: CorpusLimits) -> Corpus:
    """Each codec has records of its own, so that no topic can be taken for another."""
    corpus = Corpus(path.with_suffix(".to_send"), path.with_suffix(".as_logged"), record_count)
    records = list(_records(random.Random(CODECS.index(codec)), record_count, limits))
    write_records(corpus.to_send, records)
    write_records(corpus.as_logged, in_log_order(records))
    return corpus


def _records(rng: random.Random, record_count: int, limits: CorpusLimits) -> Iterator[Record]:
    next_offsets = [0] * PARTITION_COUNT
    large = _large_values(rng, record_count)
    run_length = -(-record_count // len(_SHAPES))
    for i in range(record_count):
        partition = rng.randrange(PARTITION_COUNT)
        if limits.headers_per_record:
            shape = rng.choices(range(len(_SHAPES)), _SHAPE_WEIGHTS)[0]
            header_set = rng.choices(range(len(HEADER_SETS)), _HEADER_SET_WEIGHTS)[0]
        else:
            shape = header_set = i // run_length
        key, value = _key_and_value(rng, shape, large.get(i))
        headers = HEADER_SETS[header_set]
        if key is None and value is None and not limits.null_key_with_null_value:
            key = b"k"
        if not limits.null_header_values:
            headers = tuple((name, b"" if value is None else value) for name, value in headers)
        yield Record(partition, next_offsets[partition], FIRST_TIMESTAMP_MS + i, key, value, headers)
        next_offsets[partition] += 1


# (has a key, has a value, either may be empty). kcat cannot send null and empty in one run, so no shape has both.
_SHAPES = ((True, True, True), (True, True, False), (False, True, False), (True, False, False), (False, False, False))
_SHAPE_WEIGHTS = (40, 40, 10, 8, 2)
_HEADER_SET_WEIGHTS = (80, 10, 5, 4, 1)


def _key_and_value(rng: random.Random, shape: int, large_value: bytes | None) -> tuple[bytes | None, bytes | None]:
    has_key, has_value, may_be_empty = _SHAPES[shape]
    key = _key(rng, may_be_empty) if has_key else None
    value = _value(rng, may_be_empty) if has_value else None
    return key, large_value or value


def _key(rng: random.Random, may_be_empty: bool) -> bytes:
    return rng.randbytes(rng.choice((0 if may_be_empty else 1, 1, 8, 16, 36)))


def _value(rng: random.Random, may_be_empty: bool) -> bytes:
    dice = rng.random()
    if dice < 0.02:
        return b"" if may_be_empty else b"0"
    if dice < 0.10:
        return rng.randbytes(1)
    if dice < 0.40:
        return rng.randbytes(rng.randint(2, 60))
    return " ".join(rng.choices(_WORDS, k=rng.randint(3, 25))).encode()


def _large_values(rng: random.Random, record_count: int) -> dict[int, bytes]:
    """By position, all in the first half: there the runs of records have values."""
    sizes = [VALUE_BYTES_MAX, VALUE_BYTES_MAX, 500_000] + [rng.randint(5_000, 100_000) for _ in range(12)]
    positions = rng.sample(range(record_count // 2), k=len(sizes))
    values = [_text(rng, size) if i % 2 else rng.randbytes(size) for i, size in enumerate(sizes)]
    return dict(zip(positions, values, strict=True))


def _text(rng: random.Random, size: int) -> bytes:
    block = " ".join(rng.choices(_WORDS, k=2000)).encode()
    return (block * (size // len(block) + 1))[:size]
