"""The archive's protocol without Spark: it may die at every step on the file system, before it or behind it."""

import contextlib
import os
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.spark import archive, lake
from penstock.spark import lake as lakes
from penstock.spark.archive import ArchiveWriter, read_up_to
from penstock.spark.lake_files import SCHEMA, OpenFile, compression_of, read_range
from penstock.spark.lake_source import LakeDataSource
from penstock.spark.lake_store import LakeStore
from penstock.spark.task import Whoami

QUERY = "6b1f0e1c-6c63-4d3b-8d5c-2a6f8f0d9b11"
PARTITIONS = 2
RECORDS = 4  # Of a partition in a batch, two for each of two days.
DAY_US = 86_400_000_000


class Dead(BaseException):
    """Nobody catches a crash."""


@pytest.fixture
def whoami(monkeypatch):
    context = [0, 0, 0, QUERY]
    monkeypatch.setattr(archive, "whoami", lambda: Whoami(*context))
    return context


@pytest.fixture(autouse=True)
def merge_soon(monkeypatch):
    monkeypatch.setattr(lake, "GROWTH", 3)


def rows_of(batch_id: int) -> pa.RecordBatch:
    offsets = list(range(batch_id * RECORDS, (batch_id + 1) * RECORDS)) * PARTITIONS
    count = len(offsets)
    columns = {name: pa.nulls(count, SCHEMA.field(name).type) for name in SCHEMA.names}
    columns |= {
        "topic": pa.array(["orders"] * count),
        "partition": pa.array([number // RECORDS for number in range(count)], pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([offset % 2 * DAY_US for offset in offsets], pa.timestamp("us", tz="UTC")),
    }
    return pa.record_batch(columns)


def run_batch(path, whoami, batch_id, compression="zstd") -> None:
    """As Spark runs it: a writer goes to the tasks, another one commits."""
    whoami[:] = [0, 0, batch_id, QUERY]
    task = pickle.loads(pickle.dumps(ArchiveWriter(str(path), None, compression)))
    message = pickle.loads(pickle.dumps(task.write(iter([rows_of(batch_id)]))))
    ArchiveWriter(str(path), None, compression).commit([message], batch_id)


def offsets_in(path) -> dict[int, list[int]]:
    store = LakeStore(str(path))
    files = store.latest().files
    return {
        number: [
            offset for each in read_range(store.root, files, number, 0, 1000) for offset in each["offset"].to_pylist()
        ]
        for number in range(PARTITIONS)
    }


def expected(*batches) -> dict[int, list[int]]:
    return {number: list(range(len(batches) * RECORDS)) for number in range(PARTITIONS)}


def crash_at(monkeypatch, step: int, *, is_done: bool) -> list[int]:
    """From step `step` on nothing is done any more; that one itself may be. Counts the steps."""
    count = [0]

    def counted(real):
        def call(*arguments, **options):
            count[0] += 1
            if count[0] < step:
                return real(*arguments, **options)
            if count[0] == step and is_done:
                real(*arguments, **options)
            raise Dead

        return call

    for owner, name in ((os, "link"), (os, "fsync"), (Path, "unlink"), (Path, "mkdir"), (OpenFile, "write")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    return count


@pytest.mark.parametrize("is_done", [False, True])
def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(tmp_path, whoami, monkeypatch, is_done):
    before = tmp_path / "before"
    for batch_id in range(2):
        run_batch(before, whoami, batch_id)
    step, is_whole = 0, False
    while not is_whole:
        step += 1
        assert step < 300
        path = tmp_path / str(step)
        shutil.copytree(before, path)
        with monkeypatch.context() as patched:
            count = crash_at(patched, step, is_done=is_done)
            with contextlib.suppress(Dead):
                run_batch(path, whoami, 2)  # With it, there is enough to merge.
            is_whole = count[0] < step
        seen = offsets_in(path)
        assert seen in (expected(0, 1), expected(0, 1, 2))
        run_batch(path, whoami, 2)
        assert offsets_in(path) == expected(0, 1, 2)
        assert LakeStore(str(path)).latest().ends == {("orders", number): 12 for number in range(PARTITIONS)}
        run_batch(path, whoami, 3)
        assert offsets_in(path) == expected(*range(4))
    assert step > 15


def test_a_merge_compresses_as_the_newest_of_its_files(tmp_path, whoami):
    seen = []
    for batch_id, compression in enumerate(["zstd", "zstd", "none", "lz4", "snappy", "zstd"]):
        run_batch(tmp_path, whoami, batch_id, compression)
        store = LakeStore(str(tmp_path))
        of_a_day = [each for each in store.latest().files if each.day == "1970-01-01"]
        seen.append([compression_of(store.root, each) for each in of_a_day])
        assert offsets_in(tmp_path) == expected(*range(batch_id + 1))
    # Three become one, the one counts as a small file again.
    assert seen == [["zstd"], ["zstd"] * 2, ["none"], ["none", "lz4"], ["snappy"], ["snappy", "zstd"]]


def test_another_compression_is_refused_with_those_that_there_are(tmp_path):
    def open_with(compression):
        source = LakeDataSource({"path": str(tmp_path), "compression": compression})
        return source.streamWriter(source.schema(), False)

    assert isinstance(open_with("LZ4"), ArchiveWriter)
    with pytest.raises(ValueError, match="one of zstd, snappy, lz4, none, not 'gzip'"):
        open_with("gzip")


def test_what_dead_tasks_left_is_deleted_when_their_batch_counts(tmp_path, whoami):
    ArchiveWriter(str(tmp_path), None).write(iter([rows_of(0)]))
    run_batch(tmp_path, whoami, 0)
    there = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.parquet")}
    assert there == {each.path for each in LakeStore(str(tmp_path)).latest().files}


def test_a_file_that_somebody_deleted_is_not_passed_over(tmp_path, whoami):
    for batch_id in range(2):
        run_batch(tmp_path, whoami, batch_id)
    store = LakeStore(str(tmp_path))
    store.delete_files(store.latest().files[:1])
    with pytest.raises(FileNotFoundError):
        run_batch(tmp_path, whoami, 2)


def test_where_a_batch_ended_is_in_sparks_own_note(tmp_path):
    (tmp_path / "offsets").mkdir()
    note = 'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"orders":{"0":7,"1":9}}'
    (tmp_path / "offsets" / "3").write_text(note)
    found = {("orders", 0): 7, ("orders", 1): 9}
    assert read_up_to(str(tmp_path), 3) == read_up_to(f"file://{tmp_path}", 3) == found
    assert read_up_to(str(tmp_path), 4) == read_up_to("hdfs://there/checkpoint", 3) == read_up_to(None, 3) == {}
    assert lakes.add_batch(lakes.Snapshot(), QUERY, 3, [], found).ends == found
