import os
import socket
import threading

import pytest

from penstock.storage import preallocation
from penstock.storage.fs import PosixFileSystem

from .support import run


def test_a_file_is_appended_to_and_read_anywhere(tmp_path):
    file = PosixFileSystem().open(f"{tmp_path}/f", create=True)
    file.write([b"one", bytearray(b"two"), memoryview(b"three")])
    assert file.size() == 11
    assert file.read(3, 3) == b"two"
    assert file.read(9, 100) == b"ee"
    assert bytes(file.read_cached(0, 100)) == b"onetwothree"
    file.truncate(3)
    file.write([b"!"])
    assert file.read(0, 9) == b"one!"
    file.sync()
    file.close()


def test_a_short_write_is_completed(tmp_path, monkeypatch):
    file = PosixFileSystem().open(f"{tmp_path}/f", create=True)
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: whole(fd, [b"".join(buffers)[:4]]))
    file.write([b"one", b"two", b"three"])
    assert file.read(0, 100) == b"onetwothree"


def test_what_a_file_no_longer_has_is_not_sent_for_ever(tmp_path):
    """No bytes are what a socket without room takes, too: who sends would try again and again."""
    file = PosixFileSystem().open(f"{tmp_path}/f", create=True)
    file.write([b"0123456789"])
    left, right = socket.socketpair()
    with left, right:
        assert file.send(left.fileno(), 8, 4) == 2
        with pytest.raises(OSError):
            file.send(left.fileno(), 10, 2)
        left.setblocking(False)
        while file.send(left.fileno(), 0, 10):
            pass  # Until the socket has no room.


def test_a_read_that_would_wait_gives_none(tmp_path, monkeypatch):
    file = PosixFileSystem().open(f"{tmp_path}/f", create=True)
    file.write([b"0123456789"])

    def nothing_cached(*_):
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", nothing_cached)
    assert file.read_cached(0, 4) is None
    monkeypatch.setattr(os, "preadv", lambda *_: 2)
    assert file.read_cached(0, 4) is None  # Only a part was cached.
    assert len(file.read_cached(8, 4)) == 2  # The end of the file.


def test_a_missing_file_is_only_made_on_request(tmp_path):
    fs = PosixFileSystem()
    with pytest.raises(FileNotFoundError):
        fs.open(f"{tmp_path}/f")
    fs.open(f"{tmp_path}/f", create=True).close()
    assert fs.exists(f"{tmp_path}/f")


def test_space_is_reserved_behind_the_end_and_given_back(tmp_path):
    path = tmp_path / "file"
    file = PosixFileSystem().open(str(path), create=True)
    file.write((b"x" * 5000,))
    file.trim()  # Nothing to give back.
    plain_blocks = path.stat().st_blocks
    is_reserved = preallocation.reserve(file.descriptor, 5000, 1 << 20)
    assert file.size() == 5000
    assert (path.stat().st_blocks * 512 > 1 << 20) == is_reserved, "told otherwise"
    file.write((b"y" * 5000,))
    assert path.read_bytes() == b"x" * 5000 + b"y" * 5000
    file.trim()
    assert path.stat().st_blocks <= plain_blocks + 16
    assert path.read_bytes() == b"x" * 5000 + b"y" * 5000
    file.close()


def test_directories_are_listed_in_order_and_removed_whole(tmp_path):
    fs = PosixFileSystem()
    fs.mkdir(f"{tmp_path}/a/b")
    fs.mkdir(f"{tmp_path}/a/b")
    for name in ("z", "x", "y"):
        fs.open(f"{tmp_path}/a/{name}", create=True).close()
    fs.sync_dir(f"{tmp_path}/a")
    fs.rename(f"{tmp_path}/a/z", f"{tmp_path}/a/b/z")
    assert fs.listdir(f"{tmp_path}/a") == ["b", "x", "y"]
    fs.remove_tree(f"{tmp_path}/a")
    assert not fs.exists(f"{tmp_path}/a")
    total, usable = fs.free_bytes(str(tmp_path))
    assert 0 < usable <= total


def test_blocking_work_runs_elsewhere(tmp_path):
    async def where() -> int:
        return await PosixFileSystem().run(threading.get_ident)

    assert run(where()) != threading.get_ident()
