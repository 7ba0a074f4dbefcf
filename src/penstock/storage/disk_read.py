"""Calls into the log that may have to wait for the disk: as one await, or before there is anyone to keep waiting."""

from collections.abc import Callable
from typing import TypeVar

from penstock.storage.fs import FileSystem
from penstock.storage.segment import NotCached

T = TypeVar("T")


async def with_disk(fs: FileSystem, look_up: Callable[[], T]) -> T:
    """What `look_up` gives once every byte it needs is in the page cache."""
    while True:
        try:
            return look_up()
        except NotCached as miss:
            await fs.run(miss.load)


def at_start(look_up: Callable[[], T]) -> T:
    """The same, on the spot: while a broker starts, it serves nobody."""
    while True:
        try:
            return look_up()
        except NotCached as miss:
            miss.load()
