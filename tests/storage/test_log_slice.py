"""Slices of a log: the batches that `read` gives, up to a boundary, read late and not after they are gone."""

import asyncio
import os
import platform
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import Offset
from penstock.storage import log as log_module
from penstock.storage import log_slice as slice_module
from penstock.storage import page_cache
from penstock.storage.fs import PosixFileSystem
from penstock.storage.log import Log
from penstock.storage.log_slice import LogSlice, SliceGone
from penstock.storage.segment import NotCached
from penstock.wire.batch import read_header

from .support import Machine, append, flush, opened, patient, split

DIRECTORY = "data/topic-0"


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SLICE_BYTES_MIN", 100)
    monkeypatch.setattr(slice_module, "PIECE_BYTES", 77)


def on_disk(directory: Path, **config: Any) -> Log:
    return opened(PosixFileSystem(), str(directory), index_interval_bytes=100, **config)


def whole(found: LogSlice) -> bytes:
    """What it has, as a connection without a socket sends it."""
    pieces = []
    while not found.is_done:
        try:
            pieces.append(bytes(found.next_piece()))
        except NotCached as miss:
            asyncio.run(_load(found, miss))
    return b"".join(pieces)


async def _load(found: LogSlice, miss: NotCached) -> None:
    miss.load()
    found._is_loaded = True


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    bytes_max=st.integers(1, 3000),
    end=st.integers(0, 60),
    seed=st.integers(0, 2**32),
)
def test_slices_and_reads_together_give_every_batch_below_the_end_once(
    sizes: list[int], bytes_max: int, end: int, seed: int
) -> None:
    machine = Machine(seed)
    machine.fs.mkdir(DIRECTORY)
    log = opened(machine.fs, DIRECTORY, segment_bytes=4000, index_interval_bytes=150, segment_index_bytes=4096)
    batches = [append(log, [b"." * size]) for size in sizes]
    end = min(end, len(sizes))
    found: list[bytes] = []
    while len(found) < end:
        start = Offset(len(found))
        read = patient(lambda at=start: bytes(log.read(at, bytes_max, Offset(end), at_least_one=True)))
        log._hints.clear()
        sliced = patient(lambda at=start: log.slice(at, bytes_max, Offset(end)))
        if sliced is None:
            found += split(read)
            continue
        data = whole(sliced)
        assert len(data) == len(sliced) <= bytes_max
        assert read.startswith(data)
        found += split(data)
        assert log.read_end == len(found)
    assert found == batches[:end]


def test_an_index_that_points_between_batches_is_not_believed(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for _ in range(10):
        append(log, [b"x" * 200])
    offsets = log.active.indexes.offsets
    last_offset, position = offsets.entry(len(offsets) - 1)
    offsets.data[-8:] = b""
    offsets.append(last_offset, position + 1)
    assert log.slice(Offset(0), 1 << 20, log.log_end) is None


@pytest.mark.parametrize("how", ["retention", "truncation", "shortened"])
def test_what_is_gone_is_not_sent(tmp_path: Path, how: str) -> None:
    log = on_disk(tmp_path)
    for _ in range(20):
        append(log, [b"x" * 200])
    flush(log)
    found = log.slice(Offset(0), 2000, log.log_end)
    assert found is not None
    found.next_piece()
    if how == "retention":
        log.roll()
        log.delete_oldest(1)
    elif how == "truncation":
        log.truncate(Offset(2))
        for _ in range(20):
            append(log, [b"y" * 200])  # At the same place, by another leader.
    else:
        os.truncate(log.active.path(), 100)
    left, right = socket.socketpair()
    with left, right, pytest.raises(SliceGone):
        found.next_piece()
        found.send(left.fileno())


def test_a_slice_stays_readable_while_its_file_is_closed_and_opened_again(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    batches = [append(log, [b"%d" % number * 200]) for number in range(20)]
    log.roll()
    found = log.slice(Offset(0), 3000, log.log_end)
    assert found is not None
    first = bytes(found.next_piece())
    flush(log)
    assert log.segments[0].maybe_close_file()
    for number in range(50):  # Its descriptor is another file's by now.
        (tmp_path / f"other-{number}").write_bytes(b"?" * 10_000)
    with (tmp_path / "other-0").open("rb"):
        assert b"".join(batches).startswith(first + whole(found))


@pytest.mark.skipif(platform.system() != "Linux", reason="sendfile to sockets, and cachestat, are Linux's")
def test_a_socket_gets_the_bytes_as_far_as_it_takes_them(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    batches = [append(log, [bytes([number]) * 5000]) for number in range(200)]
    found = log.slice(Offset(0), 900_000, log.log_end)
    assert found is not None
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        received = b""
        counts = []
        while not found.is_done:
            try:
                counts.append(found.send(left.fileno()))
            except NotCached as miss:
                asyncio.run(_load(found, miss))
                continue
            if not counts[-1]:
                received += right.recv(100_000)
        while len(received) < len(found):
            received += right.recv(100_000)
    assert 0 in counts  # It was full.
    assert received == b"".join(batches)[: len(found)]
    assert read_header(received).base_offset == 0


@pytest.mark.skipif(platform.system() != "Linux", reason="cachestat is Linux's")
def test_linux_tells_what_is_in_memory(tmp_path: Path) -> None:
    file = PosixFileSystem().open(str(tmp_path / "file"), create=True)
    file.write((os.urandom(1 << 20),))
    file.sync()
    if not page_cache.can_tell():  # Older kernels, and containers that allow no such call.
        assert not file.is_cached(0, 1)
        return
    # What was written a moment ago is there, unless the machine is short of memory.
    assert any(file.is_cached(start, 4096) for start in range(0, 1 << 20, 4096))
    descriptor = os.open(file.path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    assert not file.is_cached(0, 1 << 20)
    file.read(5000, 1)
    assert file.is_cached(5000, 1)
    with pytest.raises(OSError, match="cachestat"):
        page_cache.is_cached(-1, 0, 1)
