"""The corpus holds every shape that the clients are said to carry. Without this, a round trip proves little."""

from pathlib import Path

import pytest

from .clients.python.record_file import Record, read_records
from .corpus import PARTITION_COUNT, VALUE_BYTES_MAX, CorpusLimits, write_corpus


@pytest.fixture(scope="module", autouse=True)
def broker_lives() -> None:
    """No broker is needed here."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    path = tmp_path_factory.mktemp("corpus") / "corpus"
    corpus = write_corpus(path, codec="none", record_count=20_000, limits=CorpusLimits())
    return list(read_records(corpus.to_send))


def test_keys_are_null_empty_and_full(records: list[Record]) -> None:
    assert {None, 0, 1, 36} <= {None if record.key is None else len(record.key) for record in records}


def test_values_are_null_empty_one_byte_and_up_to_900_kb(records: list[Record]) -> None:
    lengths = {None if record.value is None else len(record.value) for record in records}
    assert {None, 0, 1, VALUE_BYTES_MAX} <= lengths
    assert max(length or 0 for length in lengths) == VALUE_BYTES_MAX == 900 * 1024


def test_some_records_have_neither_key_nor_value(records: list[Record]) -> None:
    assert any(record.key is None and record.value is None for record in records)


def test_headers_are_null_empty_repeated_and_not_ascii(records: list[Record]) -> None:
    headers = {header for record in records for header in record.headers}
    assert any(value is None for _, value in headers)
    assert any(value == b"" for _, value in headers)
    assert any(not name.isascii() for name, _ in headers)
    assert any(len({name for name, _ in record.headers}) < len(record.headers) for record in records)


def test_offsets_count_up_within_each_partition(records: list[Record]) -> None:
    for partition in range(PARTITION_COUNT):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets))) and offsets


def test_it_is_the_same_every_time(tmp_path: Path) -> None:
    once, again = (
        write_corpus(tmp_path / name, codec="zstd", record_count=100, limits=CorpusLimits())
        for name in ("once", "again")
    )
    assert once.to_send.read_bytes() == again.to_send.read_bytes()
