"""The disk that power cuts rely on: it keeps what was synced, loses the rest, and is like other disks until then."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.missing_parts import skip_when_missing
from penstock.storage.checkpoint import write_atomically
from penstock.storage.fs import PosixFileSystem

from .lossy_disk import Loss, LossyDisk, lossy_disk

CUTS = 20  # Some of what was not synced may be kept; this often it is not.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LossyDisk]:
    with skip_when_missing("FUSE, for power cuts"), lossy_disk(tmp_path / "disk", seed=7) as disk:
        yield disk


def test_synced_bytes_stay_and_others_go(disk: LossyDisk) -> None:
    fs = PosixFileSystem()
    path = str(disk.path / "log")
    fs.open(path, create=True).close()
    fs.sync_dir(str(disk.path))
    synced, losses = b"", []
    for number in range(CUTS):
        file = fs.open(path)
        file.truncate(len(synced))
        file.write([b"%d" % number * 3_000])
        file.sync()
        synced = fs.read_all(path)
        assert synced.endswith(b"%d" % number * 3_000)
        file.write([b"unsynced" * 1_000])
        assert file.read_cached(len(synced), 100) == (b"unsynced" * 13)[:100]
        assert fs.size(path) == file.size() == len(synced) + 8_000
        file.close()
        losses.append(disk.cut_power())
        assert fs.read_all(path)[: len(synced)] == synced
    lost = Loss.sum(losses)
    assert lost.unsynced_bytes == CUTS * 8_000
    assert CUTS * 1_000 < lost.lost_bytes < lost.unsynced_bytes, "all or nothing was lost, each time"


def test_names_stay_once_their_directory_is_synced(disk: LossyDisk) -> None:
    fs = PosixFileSystem()
    lost_count = 0
    for number in range(CUTS):
        directory = str(disk.path / f"topic-{number}")
        fs.mkdir(directory)
        fs.sync_dir(str(disk.path))
        write_atomically(fs, f"{directory}/checkpoint", b"kept")
        with (Path(directory) / "unsynced").open("wb") as file:
            file.write(b"named")
            os.fsync(file.fileno())
        fs.remove(f"{directory}/checkpoint")
        loss = disk.cut_power()
        lost_count += "unsynced" not in fs.listdir(directory)
        if "checkpoint" in fs.listdir(directory):
            assert fs.read_all(f"{directory}/checkpoint") == b"kept"
            assert loss.lost_names > 0
        fs.remove_tree(directory)
        fs.sync_dir(str(disk.path))
        assert not fs.exists(directory)
    assert 0 < lost_count < CUTS


def test_open_file_outlives_its_name(disk: LossyDisk) -> None:
    fs = PosixFileSystem()
    path = str(disk.path / "log")
    file = fs.open(path, create=True)
    file.write([b"a" * 300_000])
    fs.rename(path, path + ".deleted")
    fs.remove(path + ".deleted")
    file.write([b"b"])
    file.sync()
    assert file.read(299_999, 10) == b"ab"
    assert file.size() == 300_001
    file.close()
    assert fs.listdir(str(disk.path)) == []
