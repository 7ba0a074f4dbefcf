"""The records that every client writes and must read back: the same on every machine, for every run.

Mostly small, and all the shapes that have broken clients or brokers before: no key, no value, empty, one byte,
headers without a value, names and text that are not ASCII, and values of up to 900 KB that do and do not compress.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
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


class CorpusKind(Enum):
    MIXED = "mixed"  # Any record beside any other.
    RUNS = "runs"  # Long stretches share their headers and shape: kcat sets those per invocation.
    HEADERS_WITH_VALUES = "headers-with-values"  # kafkajs and kafka-python cannot send a header with a null value.


@dataclass(frozen=True)
class Corpus:
    """Two files with the same records: in the order to send them, and as a partition's log must show them."""

    to_send: Path
    as_logged: Path
    record_count: int


def write_corpus(directory: Path, kind: CorpusKind, codec: str, record_count: int) -> Corpus:
    """Each codec has records of its own, so that no topic can be taken for another."""
    name = f"{kind.value}-{codec}"
    corpus = Corpus(directory / f"{name}.to_send", directory / f"{name}.as_logged", record_count)
    records = list(_records(random.Random(CODECS.index(codec)), record_count, kind))
    write_records(corpus.to_send, records)
    write_records(corpus.as_logged, in_log_order(records))
    return corpus


def _records(rng: random.Random, record_count: int, kind: CorpusKind) -> Iterator[Record]:
    next_offsets = [0] * PARTITION_COUNT
    large = _large_values(rng, record_count)
    run_length = -(-record_count // len(_SHAPES))
    for i in range(record_count):
        partition = rng.randrange(PARTITION_COUNT)
        shape, header_set = _shape_and_header_set(rng, i // run_length, kind)
        has_key, has_value, may_be_empty = _SHAPES[shape]
        key = _key(rng, may_be_empty) if has_key else None
        value = large.get(i) or _value(rng, may_be_empty) if has_value else None
        headers = HEADER_SETS[header_set]
        if kind is CorpusKind.HEADERS_WITH_VALUES:
            headers = tuple((name, b"" if value is None else value) for name, value in headers)
        yield Record(partition, next_offsets[partition], FIRST_TIMESTAMP_MS + i, key, value, headers)
        next_offsets[partition] += 1


def _shape_and_header_set(rng: random.Random, run: int, kind: CorpusKind) -> tuple[int, int]:
    if kind is CorpusKind.RUNS:
        return run, run
    return rng.choices(range(len(_SHAPES)), _SHAPE_WEIGHTS)[0], rng.choices(range(len(HEADER_SETS)), (80, 10, 5, 4, 1))[
        0
    ]


# (has a key, has a value, either may be empty). kcat cannot send null and empty in one run, so no shape has both.
_SHAPES = ((True, True, True), (True, True, False), (False, True, False), (True, False, False), (False, False, False))
_SHAPE_WEIGHTS = (40, 40, 10, 8, 2)


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
    """By position in the first half, where every shape of a corpus in runs has a value."""
    sizes = [VALUE_BYTES_MAX, VALUE_BYTES_MAX, 500_000] + [rng.randint(5_000, 100_000) for _ in range(12)]
    positions = rng.sample(range(record_count // 2), k=len(sizes))
    values = [_text(rng, size) if i % 2 else rng.randbytes(size) for i, size in enumerate(sizes)]
    return dict(zip(positions, values, strict=True))


def _text(rng: random.Random, size: int) -> bytes:
    block = " ".join(rng.choices(_WORDS, k=2000)).encode()
    return (block * (size // len(block) + 1))[:size]
