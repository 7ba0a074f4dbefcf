"""What the storage tests share: batches, a clock to turn, a disk that fails on demand, and logs on either."""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from penstock.base.config import BrokerConfig
from penstock.base.steps import run_now
from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset, TopicPartition
from penstock.sim.clock import SimLoop
from penstock.sim.disk import SimDisk
from penstock.sim.file_system import SimFileSystem
from penstock.sim.process import Process
from penstock.storage.fs import Buffer, FileSystem, PosixFile, PosixFileSystem
from penstock.storage.limits import SegmentLimits
from penstock.storage.log import Log
from penstock.storage.log_manager import LogManager
from penstock.storage.recovery import Recovery, open_log
from penstock.storage.segment import NotCached
from penstock.wire.batch import HEADER_BYTES, Record, build_batch, plain_payload, read_header, records_of
from penstock.wire.compression import Codec
from penstock.wire.record_walk import find_record

T = TypeVar("T")

TP = TopicPartition("topic", 0)
TOPIC_ID = UUID(int=7)
NOW_MS = 1_700_000_000_000
DECOMPRESSED_MAX = 64 << 20


async def until(condition: Callable[[], bool], interval_s: float = 0.01) -> None:
    """Return as soon as the condition holds."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(interval_s)
    raise AssertionError("did not happen within a minute")


class TurnableClock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.wall_ms = now_ms
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def pass_ms(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.seconds += milliseconds / 1000


class FailingFileSystem(PosixFileSystem):
    """The real disk, except that chosen operations fail, and that syncs are only counted.

    `before` sees every operation first and may raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str, str], None] = lambda operation, path: None
        self.write_bytes_max: int | None = None  # As much of a write still gets through before it fails.
        self.syncs: list[str] = []
        self.reserves: list[tuple[int, int]] = []  # Position and size of each.

    def open(self, path: str, *, create: bool = False, appends: bool = True) -> PosixFile:
        self.before("create" if create and not self.exists(path) else "open", path)
        flags = os.O_RDWR | (os.O_APPEND if appends else 0) | (os.O_CREAT if create else 0)
        return FailingFile(self, path, os.open(path, flags, 0o644))

    def rename(self, source: str, target: str) -> None:
        self.before("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.before("remove", path)
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self.before("sync_dir", path)


class FailingFile(PosixFile):
    def __init__(self, fs: FailingFileSystem, path: str, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._failing = fs

    def write(self, buffers: Sequence[Buffer]) -> None:
        try:
            self._failing.before("write", self.path)
        except OSError:
            if self._failing.write_bytes_max:
                super().write([b"".join(buffers)[: self._failing.write_bytes_max]])
            raise
        super().write(buffers)

    def write_at(self, position: int, data: Buffer) -> None:
        self._failing.before("write_at", self.path)
        super().write_at(position, data)

    def reserve(self, position: int, size: int) -> None:
        self._failing.reserves.append((position, size))
        super().reserve(position, size)

    def trim(self) -> None:
        self._failing.before("trim", self.path)
        super().trim()

    def truncate(self, size: int) -> None:
        self._failing.before("truncate", self.path)
        super().truncate(size)

    def sync(self) -> None:
        self._failing.before("sync", self.path)
        self._failing.syncs.append(self.path)


def fail(*operations: str, suffix: str = "", code: int = errno.ENOSPC) -> Callable[[str, str], None]:
    """For `FailingFileSystem.before`: these operations fail, on files that end so."""

    def before(operation: str, path: str) -> None:
        if operation in operations and path.endswith(suffix):
            raise OSError(code, os.strerror(code), path)

    return before


def succeed(operation: str, path: str) -> None:
    """For `FailingFileSystem.before`: nothing fails."""


def batch(
    offset: int,
    values: Sequence[bytes | None] = (b"value",),
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int = NOW_MS,
    codec: Codec = Codec.NONE,
    **options: Any,
) -> bytearray:
    """A batch of one record a value, from `offset` on."""
    records = [
        Record(offset + number, timestamp, keys[number] if keys else None, value) for number, value in enumerate(values)
    ]
    return build_batch(records, base_offset=offset, codec=codec, **options)


def append(log: Log, values: Sequence[bytes | None] = (b"value",), **options: Any) -> bytes:
    """Append a batch at the log's end; gives its bytes."""
    data = batch(log.log_end, values, **options)
    header = read_header(data)
    log.append(data, header.last_offset, header.max_timestamp)
    return bytes(data)


def new_log(fs: FileSystem, directory: str, clock: TurnableClock | None = None, **config: Any) -> Log:
    """A log that is not open yet."""
    limits = config.pop("limits", None) or SegmentLimits(files_max=100)
    return Log(
        topic_partition=TP,
        directory=directory,
        fs=fs,
        clock=clock or TurnableClock(),
        config=TopicConfig(**config),
        limits=limits,
    )


def opened(
    fs: FileSystem,
    directory: str,
    *,
    recovery_point: int | None = 0,
    log_start: int = 0,
    clean: bool = False,
    **config: Any,
) -> Log:
    return recovered(fs, directory, recovery_point, log_start=log_start, clean=clean, **config)[0]


def recovered(
    fs: FileSystem, directory: str, recovery_point: int | None, log_start: int = 0, clean: bool = False, **config: Any
) -> tuple[Log, Recovery]:
    log = new_log(fs, directory, **config)
    point = None if recovery_point is None else Offset(recovery_point)
    return log, open_log(log, fs, recovery_point=point, log_start=Offset(log_start), clean=clean)


def flush(log: Log) -> None:
    """Sync the log here and now."""
    begun = log.begin_flush()
    begun.run()
    log.on_flushed(begun)


def read_all(log: Log, start: int | None = None, bytes_max: int = 1 << 20) -> list[bytes]:
    """The batches from `start` to the end, read as a consumer does; retries what is not cached."""
    found = []
    position = Offset(log.log_start if start is None else start)
    while True:
        data = patient(lambda at=position: log.read(at, bytes_max, log.log_end, at_least_one=True))
        if not data:
            return found
        for one in split(data):
            found.append(one)
            position = Offset(read_header(one).next_offset)


def patient(look_up: Callable[[], T]) -> T:
    """What `look_up` gives, after the reads from disk that it asks for."""
    while True:
        try:
            return look_up()
        except NotCached as miss:
            miss.load()


class ByTime(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def by_time(log: Log, timestamp: int, end: Offset | None = None) -> ByTime | None:
    """The first record of `timestamp` or later below `end`, as ListOffsets would find it."""
    start, end = log.log_start, log.log_end if end is None else end
    while (batch := patient(partial(log.batch_for_timestamp, timestamp, start, end))) is not None:
        header = read_header(batch)
        data = plain_payload(header, memoryview(batch)[HEADER_BYTES:], DECOMPRESSED_MAX)
        found = run_now(find_record(header, data, timestamp=timestamp, start=start, end=end))
        if found is not None:
            return ByTime(*found, header.partition_leader_epoch)
        start = Offset(header.next_offset)
    return None


def split(data: Buffer) -> list[bytes]:
    batches = []
    position = 0
    while position < len(data):
        size = read_header(data, position).size
        batches.append(bytes(data[position : position + size]))
        position += size
    return batches


def values_of(batches: Sequence[bytes]) -> list[bytes | None]:
    return [record.value for one in batches for record in records_of(one, decompressed_bytes_max=DECOMPRESSED_MAX)]


def latest_values(log: Log) -> dict[bytes | None, bytes | None]:
    """Key → value, as a consumer that reads everything ends up with."""
    return {
        record.key: record.value
        for one in read_all(log)
        for record in records_of(one, decompressed_bytes_max=DECOMPRESSED_MAX)
    }


def manager(fs: FileSystem, data_dir: Path | str, clock: TurnableClock | None = None, **options: Any) -> LogManager:
    files_max = options.pop("files_max", 100)
    config = BrokerConfig(data_dir=str(data_dir), **options)
    return LogManager(config=config, fs=fs, clock=clock or TurnableClock(), files_max=files_max)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Machine:
    """A disk that survives power cuts, and the broker processes that come and go on it."""

    def __init__(self, seed: int = 0, clock: TurnableClock | None = None) -> None:
        self.clock = clock or TurnableClock()
        self.disk = SimDisk(random=Random(seed), clock=self.clock)
        self.fs = SimFileSystem(self.disk)

    def cut_power(self) -> SimFileSystem:
        self.disk.crash()
        self.fs = SimFileSystem(self.disk)
        return self.fs

    def run_killed_then_cut(self, *lives: Callable[["Machine"], Coroutine[Any, Any, None]]) -> None:
        """Three lives: the second meets the page cache of the first, the third only what is on disk."""
        first, second, third = lives
        self.run(first(self))
        self.fs = SimFileSystem(self.disk)
        self.run(second(self))
        self.cut_power()
        self.run(third(self))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one life of a process, in virtual time; Killed when the power is cut."""

        async def live() -> T:
            process = Process(loop, "broker")
            self.disk.on_power_cut = process.kill
            return await process.call(work)

        loop = SimLoop()
        result = loop.run(live())
        assert not loop.failures, loop.failures
        return result
