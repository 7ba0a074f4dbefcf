"""Many logs and one sync: what the journal takes, when it is full, and what a start makes of it."""

import asyncio
import contextlib
import errno
import gc
from uuid import UUID

import pytest

from penstock.base.errors import Refused
from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset, TopicPartition
from penstock.sim.file_system import SimFileSystem
from penstock.sim.process import Killed
from penstock.storage.compaction import CleanedSegment
from penstock.storage.direct_file import BLOCK_BYTES
from penstock.storage.format import RECOVERY_POINT_CHECKPOINT, SYNC_FAILED_MARKER
from penstock.storage.fs import PosixFileSystem
from penstock.storage.journal import PAGE_BYTES, PIECE_BYTES_MAX, TURNED_AWAY_TIMES
from penstock.storage.journal_format import (
    ENTRY_HEAD_BYTES,
    NOWHERE,
    PIECE_HEAD_BYTES,
    RECORDS,
    SECTOR_BYTES,
    VOID,
    LogKey,
    Piece,
    read_journal,
)
from penstock.storage.kernel_syncs import KernelSyncs
from penstock.wire.batch import read_header

from .support import FailingFileSystem, Machine, append, batch, fail, manager, read_all, run, succeed, until, values_of
from .test_journal_format import packed

CONFIG = TopicConfig()
COMPACTED = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1000)
JOURNAL_BYTES = 16 << 10
PATH = "penstock.journal"


def topic(number: int) -> tuple[TopicPartition, UUID]:
    return TopicPartition(f"topic{number}", 0), UUID(int=100 + number)


def started(fs, data_dir, **options):
    logs = manager(fs, data_dir, **{"penstock_journal_bytes": JOURNAL_BYTES, **options})
    logs.start()
    return logs


async def serving(fs, data_dir, count=3, config=CONFIG, **options):
    """Logs that have been synced once, so that a journal has been made, and the next sync can be one of it."""
    logs = started(fs, data_dir, **options)
    opened = [logs.open(*topic(number), config) for number in range(count)]
    logs.end_replay(())
    for log in opened:
        append(log)
        await commit(logs, log)
    if options.get("penstock_journal_bytes", JOURNAL_BYTES):
        await until(lambda: logs._journal.file is not None or not logs.commit._background)
    return logs, opened


async def commit(logs, *chosen):
    for log in chosen:
        logs.commit.request(log)
    for log in chosen:
        await logs.commit.finish(log)


def restarted(first, second, seeds=range(20)):
    """Two lives with a power cut between them."""
    for seed in seeds:
        machine = Machine(seed)
        machine.run(first(machine))
        machine.cut_power()
        machine.run(second(machine))


def finds(values):
    """A life that finds these in the first log."""

    async def life(machine):
        logs = started(machine.fs, "data")
        assert values_of(read_all(logs.open(*topic(0), CONFIG))) == values

    return life


def is_filed(log):
    return log.filed_end == log.log_end


# Syncs


def test_small_appends_to_many_logs_share_a_sync(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, opened = await serving(fs, tmp_path, count=20)
        fs.syncs.clear()
        told = []
        for log in opened:
            log.on_synced = lambda log=log: told.append(log)
            append(log)
        await commit(logs, *opened)
        assert fs.syncs == [f"{tmp_path}/{PATH}"]
        assert told == opened
        assert all(log.synced_end == 2 and log.filed_end == 1 for log in opened)
        assert not any(log.flush_in_flight for log in opened)

    run(life())


def test_what_comes_while_an_entry_is_synced_is_in_the_next(tmp_path):
    async def life():
        logs, (first, second, _) = await serving(PosixFileSystem(), tmp_path)
        append(first)
        logs.commit.request(first)
        await asyncio.sleep(0)
        append(first)
        append(second)
        logs.commit.request(first)
        logs.commit.request(second)
        await logs.commit.finish()
        assert (first.synced_end, second.synced_end) == (3, 2)
        assert (first.filed_end, second.filed_end) == (1, 1)

    run(life())


@pytest.mark.parametrize(
    ("values", "config"),
    [
        pytest.param((b"x" * PIECE_BYTES_MAX,), CONFIG, id="much at once"),
        pytest.param((b"x",), TopicConfig(durability="os"), id="left to the kernel"),
        pytest.param((b"x",), TopicConfig(segment_bytes=100), id="a new segment"),
    ],
)
def test_a_log_is_synced_by_itself(tmp_path, values, config):
    async def life():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path, config=config)
        append(log, values)
        await commit(logs, log)
        assert log.synced_end == 2
        assert is_filed(log)

    run(life())


def test_side_files_are_synced_with_the_records_that_lean_on_them(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, (log, *_) = await serving(fs, tmp_path)
        fs.syncs.clear()
        append(log)
        log.put_side_file("leader-epoch-checkpoint", b"0\n0\n")
        await commit(logs, log)
        assert is_filed(log)
        assert [path.rpartition("/")[2] for path in fs.syncs] == [
            "leader-epoch-checkpoint.tmp", "00000000000000000000.log",
        ]  # fmt: skip

    run(life())


def test_who_asks_for_it_gets_the_file_itself_synced(tmp_path):
    async def life():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log)
        await commit(logs, log)
        assert not is_filed(log)
        logs.commit.request(log, is_filed=True)
        await logs.commit.finish(log)
        assert is_filed(log)
        assert logs._journal.owing == []
        append(log)
        await commit(logs, log)
        assert not is_filed(log)

    run(life())


def test_a_full_half_has_its_logs_synced_and_is_used_again(tmp_path):
    async def life():
        logs, opened = await serving(PosixFileSystem(), tmp_path)
        written = 0
        while logs._journal._generation < 5:
            append(opened[written % 3], (b"x" * 200,))
            await commit(logs, opened[written % 3])
            written += 1
        assert sum(log.log_end for log in opened) == written + 3
        assert written > 20  # Of half a kilobyte each, in halves of 8.
        assert (tmp_path / PATH).stat().st_size == JOURNAL_BYTES

    run(life())


def test_without_room_logs_are_synced_by_themselves(tmp_path):
    async def life():
        logs, opened = await serving(PosixFileSystem(), tmp_path)
        journal = logs._journal
        journal._owing[journal._next_half][opened[2]] = None  # It does not get around to it.
        for _ in range(40):
            append(opened[0], (b"x" * 200,))
            await commit(logs, opened[0])
        assert opened[0].synced_end == 41
        assert is_filed(opened[0])
        assert journal._generation == 0

    run(life())


@pytest.mark.parametrize("count", [1, 40])
def test_every_broker_stops_without_a_journal(tmp_path, count):
    async def life():
        logs, opened = await serving(PosixFileSystem(), tmp_path)
        for number in range(count):
            append(opened[number % 3])
            await commit(logs, opened[number % 3])
        await logs.stop()

    run(life())
    assert not (tmp_path / PATH).exists()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_none_is_made_where_it_is_not_wanted_or_hardly_used(tmp_path):
    async def life(size):
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path, penstock_journal_bytes=size)
        append(log)
        await commit(logs, log)
        assert is_filed(log)
        assert not (tmp_path / PATH).exists()
        await logs.stop()

    run(life(0))
    run(life(64 << 20))


@pytest.mark.parametrize("size", [JOURNAL_BYTES, 32 << 20])
def test_none_is_made_by_a_stop(tmp_path, size):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path, penstock_journal_bytes=size)
        for number in range(40):
            logs.open(*topic(number), CONFIG)
        logs.end_replay(())
        made = []
        fs.before = lambda operation, path: made.append(path) if operation == "create" else None
        await logs.stop()
        assert f"{tmp_path}/{PATH}" not in made

    run(life())


def test_none_is_made_for_syncs_that_it_could_not_have_taken(tmp_path):
    """Of new files, of side files alone, of more than a piece, and of the log's own file on demand."""

    async def life():
        logs = started(PosixFileSystem(), tmp_path, penstock_journal_bytes=32 << 20)
        opened = [logs.open(*topic(number), CONFIG) for number in range(40)]
        logs.end_replay(())
        await commit(logs, *opened)
        for log in opened:
            log.put_side_file("leader-epoch-checkpoint", b"0\n0\n")
        await logs.checkpoint()
        await logs.commit.finish()
        for log in opened:
            append(log, (b"x" * PIECE_BYTES_MAX,))
        await commit(logs, *opened)
        for log in opened:
            append(log)
            logs.commit.request(log, is_filed=True)
        await logs.commit.finish()
        assert not logs.commit._background
        assert not (tmp_path / PATH).exists()
        for log in opened:
            append(log)
        await commit(logs, *opened)
        await until(lambda: logs._journal.file is not None)

    run(life())


# Past the page cache


class HeldDirectFile:
    """Takes writes, each of which ends when the test says so."""

    block_bytes = SECTOR_BYTES

    def __init__(self, memory_bytes):
        self.memory = memoryview(bytearray(memory_bytes))
        self.under_way = []  # Position and size of each, and who waits for it.
        self.begun = 0
        self.is_busy = self.is_closed = False

    def begin(self, position, size):
        if self.is_busy:
            return None
        done = asyncio.get_running_loop().create_future()
        self.under_way.append((position, size, done))
        self.begun += 1
        return done

    def close(self):
        self.is_closed = True


class DirectFileSystem(FailingFileSystem):
    def __init__(self):
        super().__init__()
        self.direct = None

    def open_direct(self, path, memory_bytes):
        self.direct = HeldDirectFile(memory_bytes)
        return self.direct

    def end_write(self, error=None):
        position, size, done = self.direct.under_way.pop(0)
        if error is not None:
            done.set_exception(error)
            return
        with self.path.open("r+b") as file:
            file.seek(position)
            file.write(self.direct.memory[:size])
        done.set_result(None)


async def serving_directly(tmp_path):
    fs = DirectFileSystem()
    fs.path = tmp_path / PATH
    logs, opened = await serving(fs, tmp_path)
    fs.syncs.clear()
    return fs, logs, opened


async def begin(logs, log, *values):
    """Append and ask for a sync; return when the journal's write is under way."""
    append(log, values or (b"value",))
    logs.commit.request(log)
    await asyncio.sleep(0.01)


def test_an_entry_is_on_disk_when_its_write_is_done(tmp_path):
    async def life():
        fs, logs, (log, other, _) = await serving_directly(tmp_path)
        await begin(logs, log)
        await begin(logs, other)
        assert len(fs.direct.under_way) == 1
        assert (log.synced_end, other.synced_end) == (1, 1)
        fs.end_write()
        await logs.commit.finish(log)
        assert (log.synced_end, other.synced_end) == (2, 1)
        await until(lambda: fs.direct.under_way)
        fs.end_write()
        await logs.commit.finish(other)
        assert other.synced_end == 2
        assert fs.syncs == []
        assert [len(entry.pieces) for entry in read_journal(fs.path.read_bytes())] == [0, 1, 1]

    run(life())


def test_what_could_not_be_written_directly_goes_through_the_page_cache_from_then_on(tmp_path):
    async def life():
        fs, logs, (log, _, _) = await serving_directly(tmp_path)
        await begin(logs, log, b"first")
        fs.end_write()
        await begin(logs, log, b"second")
        fs.end_write(OSError(errno.EINVAL, "not so"))
        await logs.commit.finish(log)
        assert (log.synced_end, log.filed_end) == (3, 1)
        assert fs.direct.is_closed
        await begin(logs, log, b"third")
        await logs.commit.finish(log)
        assert (log.synced_end, log.filed_end) == (4, 1)
        assert fs.direct.begun == 2
        assert fs.syncs == [f"{tmp_path}/{PATH}"] * 2
        assert logs.offline is None
        pieces = [piece for entry in read_journal(fs.path.read_bytes()) for piece in entry.pieces]
        assert [piece.start for piece in pieces] == [1, 2, 3]

    run(life())


def test_what_could_not_be_synced_either_is_not_acknowledged(tmp_path):
    async def life():
        fs, logs, (log, other, _) = await serving_directly(tmp_path)
        await begin(logs, log)
        fs.before = fail("sync", suffix=PATH, code=errno.EIO)
        fs.end_write(OSError(errno.EIO, "broken"))
        await logs.commit.finish(log)
        assert log.synced_end == 1
        assert "the journal" in logs.offline
        fs.before = succeed
        with pytest.raises(Refused, match="sync of the journal failed"):
            append(other)

    run(life())


@pytest.mark.parametrize("is_turn", [False, True])
def test_what_finds_no_room_in_any_way_is_no_failure(tmp_path, is_turn):
    """On a file system that writes out of place."""

    async def life():
        fs, logs, (log, other, _) = await serving_directly(tmp_path)
        journal = logs._journal
        if is_turn:
            await fill_directly(fs, logs, log)
        before = journal._generation, journal._number, journal._position
        await begin(logs, other, b"o" * 900)
        fs.before = fail("write_at", suffix=PATH)
        fs.end_write(OSError(errno.ENOSPC, "full"))
        await logs.commit.finish()
        assert (logs.offline, other.synced_end, other.filed_end) == (None, 2, 2)
        assert (journal._generation, journal._number, journal._position) == before
        fs.before = succeed
        await begin(logs, other)
        await logs.commit.finish(other)
        assert (other.synced_end, other.filed_end) == (3, 2)
        newest = read_journal(fs.path.read_bytes())[-1].pieces
        assert [(piece.key, piece.start) for piece in newest] == [(other.key, 2)]

    run(life())


async def fill_directly(fs, logs, log):
    """Until a kilobyte more does not fit in the half."""
    while logs._journal.fits([Piece(log.key, RECORDS, 0, b"x" * 1000)]):
        await begin(logs, log, b"x" * 700)
        fs.end_write()
        await logs.commit.finish(log)


def test_a_direct_file_that_fails_to_close_is_closed_once(tmp_path):
    async def life():
        fs, logs, (log, *_) = await serving_directly(tmp_path)
        closed = []

        def close():
            closed.append(1)
            raise OSError(errno.EIO, "as NFS may say it")

        fs.direct.close = close
        await begin(logs, log)
        fs.end_write(OSError(errno.EINVAL, "not so"))
        await logs.commit.finish(log)
        assert (logs.offline, log.synced_end) == (None, 2)
        await logs.stop()
        assert closed == [1]

    run(life())


def test_an_entry_that_the_kernel_does_not_take_goes_through_the_page_cache(tmp_path):
    async def life():
        fs, logs, (log, _, _) = await serving_directly(tmp_path)
        for is_busy in (True, False, True):
            fs.direct.is_busy = is_busy
            await begin(logs, log)
            if not is_busy:
                fs.end_write()
            await logs.commit.finish(log)
        assert (log.synced_end, log.filed_end) == (4, 1)
        assert fs.syncs == [f"{tmp_path}/{PATH}"] * 2
        pieces = [piece for entry in read_journal(fs.path.read_bytes()) for piece in entry.pieces]
        assert [piece.start for piece in pieces] == [1, 2, 3]

    run(life())


def test_memory_that_the_kernel_reads_is_left_alone_whoever_gives_up(tmp_path):
    async def life():
        fs, logs, (log, other, _) = await serving_directly(tmp_path)
        await begin(logs, log, b"first")
        entry = bytes(fs.direct.memory)
        logs.commit._entry.cancel()
        await asyncio.sleep(0.01)
        await begin(logs, other, b"second")
        assert bytes(fs.direct.memory) == entry
        assert fs.direct.begun == 1
        fs.end_write()
        await until(lambda: fs.direct.under_way)
        fs.end_write()
        await logs.commit.finish(other)
        assert other.synced_end == 2
        _, *entries = read_journal(fs.path.read_bytes())
        assert [entry.pieces[0].key for entry in entries] == [log.key, other.key]

    run(life())


def test_memory_that_the_kernel_reads_is_left_alone_also_by_a_turn(tmp_path):
    async def life():
        fs, logs, (log, other, _) = await serving_directly(tmp_path)
        await fill_directly(fs, logs, log)
        await begin(logs, log, b"last")
        entry = bytes(fs.direct.memory)
        logs.commit._entry.cancel()
        await begin(logs, other, b"o" * 900)
        assert bytes(fs.direct.memory) == entry
        assert fs.direct.under_way[0][2].done() is False
        fs.end_write()
        for _ in range(2):  # The other half begins, and then the entry.
            await until(lambda: fs.direct.under_way)
            fs.end_write()
        await logs.commit.finish(other)
        assert (other.synced_end, other.filed_end, logs._journal._generation) == (2, 1, 1)

    run(life())


@pytest.mark.parametrize("generation", [1, 2, 3, 4])
def test_a_half_begins_with_nothing_that_its_next_generation_could_tear(generation):
    """Of a block that is written over a power cut may leave some sectors as they were."""
    acked = [[], [], []]

    async def first(machine):
        logs, opened = await serving(machine.fs, "data", penstock_journal_bytes=64 << 10)
        for values in acked:
            values.clear()
        for number in range(200):
            log, value = opened[number % 3], b"%03d" % number + b"x" * 1000
            append(log, (value,))
            logs.commit.request(log)
            while log.flush_in_flight:
                if logs._journal._generation == generation and logs._journal.is_turned:
                    return
                await asyncio.sleep(0.00002)
            acked[number % 3].append(value)
        raise AssertionError("no turn")

    async def second(machine):
        logs = started(machine.fs, "data", penstock_journal_bytes=64 << 10)
        for number, values in enumerate(acked):
            assert values_of(read_all(logs.open(*topic(number), CONFIG)))[1 : 1 + len(values)] == values

    for seed in range(30):
        machine = Machine(seed)
        machine.fs = SimFileSystem(machine.disk, BLOCK_BYTES)
        machine.run(first(machine))
        machine.cut_power()
        machine.run(second(machine))


def test_what_a_killed_broker_has_begun_to_write_is_not_believed_before_it_is_on_disk():
    """The kernel goes on with it, and a sync does not wait for that."""
    late = []

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data")
        append(log, (b"deleted",))
        await commit(logs, log)
        if logs._journal._direct is None:
            return
        late.clear()

        def begin(position, size):
            late.append((position, bytes(logs._journal._direct.memory[:size])))
            return asyncio.get_running_loop().create_future()

        logs._journal._direct.begin = begin
        logs.delete(topic(0)[0])
        await until(lambda: late)

    async def second(machine):
        fs, carry_out = machine.fs, machine.fs.read_all

        def read(path):
            if path.endswith(PATH):
                with contextlib.closing(fs.open(path, appends=False)) as file:
                    for position, entry in late:
                        file.write_at(position, entry)
            return carry_out(path)

        fs.read_all = read
        logs = started(fs, "data")
        fs.read_all = carry_out
        assert logs.open(*topic(0), CONFIG).log_end == 0

    async def third(machine):
        logs = started(machine.fs, "data")
        with contextlib.suppress(BlockingIOError):  # It waits for the end of the replay.
            log = logs.open(*topic(0), CONFIG)
            assert (log.log_end, log.failure, logs.damaged) == (0, None, {})

    seen = 0
    for seed in range(40):
        late.clear()
        machine = Machine(seed)
        machine.run(first(machine))
        if not late:
            continue  # Nothing is written directly there.
        seen += 1
        machine.fs = SimFileSystem(machine.disk)
        machine.run(second(machine))
        machine.cut_power()
        machine.run(third(machine))
    assert seen > 10


def test_what_was_written_directly_is_there_after_a_crash(tmp_path):
    """By the kernel's own calls, with entries of whole blocks."""

    async def first():
        with KernelSyncs() as syncs:
            logs, opened = await serving(PosixFileSystem(None, syncs), tmp_path, penstock_journal_bytes=256 << 10)
            if logs._journal._direct is None:
                pytest.skip("NOT TESTED: direct writes: this system does not have them")
            filed = [log.active.size for log in opened]
            for number in range(20):
                log = opened[number % 3]
                append(log, (b"acked%d" % number,))
                await commit(logs, log)
            assert logs._journal._direct is not None
            assert logs._journal._position == 21 * logs._journal._block_bytes
            for log, size in zip(opened, filed, strict=True):  # A power cut takes what has not been synced there.
                log.active.file.truncate(size)

    async def second():
        logs = started(PosixFileSystem(), tmp_path)
        for number in range(3):
            values = values_of(read_all(logs.open(*topic(number), CONFIG)))
            assert values[1:] == [b"acked%d" % each for each in range(number, 20, 3)]

    run(first())
    run(second())


# Failures


def test_a_disk_without_room_for_a_journal_does_without(tmp_path):
    async def life():
        fs = FailingFileSystem()
        fs.before = fail("write_at", suffix=PATH)
        logs, (log, *_) = await serving(fs, tmp_path)
        append(log)
        await commit(logs, log)
        assert is_filed(log)
        assert logs.offline is None
        assert not (tmp_path / PATH).exists()

    run(life())


def test_an_entry_that_cannot_be_written_is_no_failure(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, (log, *_) = await serving(fs, tmp_path)
        fs.before = fail("write_at", suffix=PATH)
        append(log)
        await commit(logs, log)
        assert log.synced_end == 2
        assert is_filed(log)
        assert logs.offline is None
        fs.before = succeed
        append(log)
        await commit(logs, log)
        assert log.synced_end == 3
        assert not is_filed(log)

    run(life())


def test_a_failed_sync_of_the_journal_takes_the_directory_offline(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, (log, other, _) = await serving(fs, tmp_path)
        fs.before = fail("sync", suffix=PATH, code=errno.EIO)
        append(log)
        append(other)
        await commit(logs, log, other)
        assert "the journal" in logs.offline
        assert (log.synced_end, other.synced_end) == (1, 1)
        assert not log.flush_in_flight
        with pytest.raises(Refused):
            append(log)

    run(life())


# Starts


def test_a_power_cut_takes_nothing_that_was_in_the_journal():
    async def first(machine):
        logs, opened = await serving(machine.fs, "data")
        for number in range(5):
            for log in opened:
                append(log, (b"value%d" % number,))
            await commit(logs, *opened)
        assert [log.synced_end for log in opened] == [6] * 3
        assert [log.filed_end for log in opened] == [1] * 3

    async def second(machine):
        logs = started(machine.fs, "data")
        for number in range(3):
            log = logs.open(*topic(number), CONFIG)
            assert values_of(read_all(log)) == [b"value", *(b"value%d" % number for number in range(5))]
            assert log.synced_end == log.filed_end == 6
        logs.end_replay(())
        assert not machine.fs.exists(f"data/{PATH}")

    restarted(first, second)


def test_a_log_that_begins_behind_the_end_of_its_own_file():
    """Its start is noted in a checkpoint that is synced, and its records in the journal alone."""

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data")
        for _ in range(5):
            append(log)
        await commit(logs, log)
        log.advance_start(Offset(4))
        await logs.checkpoint()
        assert log.filed_end == 1

    async def second(machine):
        logs = started(machine.fs, "data")
        log = logs.open(*topic(0), CONFIG)
        assert (log.log_start, log.log_end) == (4, 6)
        assert logs.damaged == {}

    restarted(first, second)


def test_what_was_cut_off_does_not_come_back():
    async def first(machine):
        logs, (log, other, _) = await serving(machine.fs, "data")
        append(log, (b"cut",))
        append(log, (b"cut",))
        append(other, (b"kept",))
        await commit(logs, log, other)
        await logs.truncate(log, Offset(1))
        append(log, (b"new",))
        await commit(logs, log)
        assert log.synced_end == 2

    async def second(machine):
        logs = started(machine.fs, "data")
        assert values_of(read_all(logs.open(*topic(0), CONFIG))) == [b"value", b"new"]
        assert values_of(read_all(logs.open(*topic(1), CONFIG))) == [b"value", b"kept"]
        assert logs.damaged == {}

    restarted(first, second)


def test_what_was_cut_off_does_not_come_back_from_the_half_before():
    async def first(machine):
        logs, (log, other, _) = await serving(machine.fs, "data")
        append(log, (b"cut",))
        await commit(logs, log)
        while logs._journal._generation < 1:
            append(other, (b"x" * 300,))
            await commit(logs, other)
        await logs.truncate(log, Offset(1))

    restarted(first, finds([b"value"]))


def test_a_partition_that_comes_back_is_not_given_the_records_of_the_one_before():
    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data")
        append(log, (b"gone",))
        await commit(logs, log)
        logs.delete(topic(0)[0])
        await asyncio.sleep(1)
        again = logs.open(*topic(0), CONFIG)
        append(again, (b"new",))
        await commit(logs, again)

    restarted(first, finds([b"new"]))


def test_records_that_are_missing_before_those_of_the_journal_are_reported(tmp_path):
    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log)
        logs.commit.request(log, is_filed=True)
        await logs.commit.finish(log)
        append(log)
        await commit(logs, log)

    async def second():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(0), CONFIG)
        assert "records 1 to 1 are missing" in log.failure
        assert topic(0)[0] in logs.damaged
        logs.end_replay(())
        assert (tmp_path / f"{PATH}-1-stray").exists()  # For the operator.

    run(first())
    path = tmp_path / "topic0-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    run(second())
    assert not (tmp_path / PATH).exists()


def test_a_start_fails_whose_journal_is_needed_later():
    async def first(machine):
        logs, opened = await serving(machine.fs, "data")
        for log in opened:
            append(log, (b"journaled",))
        await commit(logs, *opened)

    async def second(machine):
        logs = started(machine.fs, "data")
        log = logs.open(*topic(0), CONFIG)
        with pytest.raises(OSError, match="newest records are in the journal") as refused:
            logs.end_replay([LogKey(topic(1)[1], 0)])
        assert refused.value.errno is None  # Whoever starts it would be shown the system's words for that instead.
        assert values_of(read_all(log)) == [b"value", b"journaled"]

    async def third(machine):
        logs = started(machine.fs, "data")
        for number in range(3):
            assert values_of(read_all(logs.open(*topic(number), CONFIG))) == [b"value", b"journaled"]
        logs.end_replay([LogKey(UUID(int=1), 0)])

    machine = Machine(3)
    machine.run(first(machine))
    machine.cut_power()
    machine.run(second(machine))
    machine.cut_power()
    machine.run(third(machine))


@pytest.mark.parametrize("is_filed", [True, False])
def test_a_log_that_cannot_be_opened_keeps_no_broker_down_that_has_all_in_its_own_file(tmp_path, is_filed):
    async def first():
        logs, (log, *_) = await serving(FailingFileSystem(), tmp_path)
        append(log)
        await commit(logs, log)
        if is_filed:
            logs.commit.request(log, is_filed=True)
            await logs.commit.finish(log)
        await logs.checkpoint()

    async def second():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        fs.before = fail("open", suffix="topic0-0/00000000000000000000.log", code=errno.EIO)
        with pytest.raises(OSError):
            logs.open(*topic(0), CONFIG)
        for number in (1, 2):
            logs.open(*topic(number), CONFIG)
        unopened = [LogKey(topic(0)[1], 0)]
        if is_filed:
            logs.end_replay(unopened)
        else:
            with pytest.raises(OSError, match="newest records are in the journal"):
                logs.end_replay(unopened)
        assert (tmp_path / PATH).exists() != is_filed
        assert not (tmp_path / f"{PATH}-1-stray").exists()

    run(first())
    run(second())


def test_a_start_believes_nothing_that_the_journal_has_in_memory_alone():
    """Killed while it wrote that a log is void: the next life makes it anew, and then the power goes."""

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data")
        append(log, (b"deleted",))
        await commit(logs, log)
        assert logs._journal.knows(log.key)
        _, has_come = hold_journal(machine.fs)
        logs.delete(topic(0)[0])
        await has_come.wait()

    async def second(machine):
        logs = started(machine.fs, "data")
        assert logs.open(*topic(0), CONFIG).log_end == 0

    async def third(machine):
        logs = started(machine.fs, "data")
        log = logs.open(*topic(0), CONFIG)
        assert (log.log_end, log.failure, logs.damaged) == (0, None, {})

    for seed in range(60):
        Machine(seed).run_killed_then_cut(first, second, third)


def test_a_start_fails_whose_journal_cannot_be_synced(tmp_path):
    journaled_only(tmp_path)
    fs = FailingFileSystem()
    fs.before = fail("sync", suffix=PATH, code=errno.EIO)
    with pytest.raises(OSError, match=r"penstock\.journal cannot be synced") as refused:
        started(fs, tmp_path)
    assert refused.value.errno is None  # As above.
    assert (tmp_path / PATH).exists()


def journaled_only(path):
    """A life whose newest record in each of three logs is in the journal alone: their own files lose it."""

    async def life():
        logs, opened = await serving(PosixFileSystem(), path)
        for log in opened:
            append(log, (b"journaled",))
        await commit(logs, *opened)
        assert not any(is_filed(log) for log in opened)

    run(life())
    for number in range(3):
        file = path / f"topic{number}-0" / "00000000000000000000.log"
        file.write_bytes(file.read_bytes()[: read_header(file.read_bytes()).size])


@pytest.mark.parametrize("is_there", [True, False])
def test_a_journal_stays_with_the_directory_of_a_log_that_nobody_has_asked_for(tmp_path, is_there):
    """Its partition is on another broker by now, or we have failed to see that it is ours."""

    async def second():
        logs = started(PosixFileSystem(), tmp_path)
        for number in range(2):
            assert values_of(read_all(logs.open(*topic(number), CONFIG))) == [b"value", b"journaled"]
        logs.end_replay(())
        assert (tmp_path / f"{PATH}-1-stray").exists() == is_there
        assert not (tmp_path / PATH).exists()

    async def third():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(2), CONFIG)
        assert (log.log_end, log.recovery_point) == ((1, 1) if is_there else (0, 0))

    journaled_only(tmp_path)
    if not is_there:
        (tmp_path / "topic2-0").rename(tmp_path / "topic3-0")
        (tmp_path / "topic3-0" / "partition.metadata").unlink()
    run(second())
    run(third())


@pytest.mark.parametrize(
    ("generation", "position"),
    [
        pytest.param(0, 0, id="magic"),
        pytest.param(1, 10, id="salt"),
        pytest.param(0, 30, id="first entry"),
        pytest.param(0, 600, id="entry between others"),
        pytest.param(1, 600, id="the same in the other half"),
    ],
)
def test_no_start_drops_what_is_behind_a_damaged_entry(tmp_path, generation, position):
    async def first():
        logs, (log, other, third) = await serving(PosixFileSystem(), tmp_path)
        await fill(logs, third, generation)
        for chosen in (log, other, log, other):
            append(chosen, (b"acked",))
            await commit(logs, chosen)
        assert not is_filed(log)
        assert not is_filed(other)

    run(first())
    path = tmp_path / PATH
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[generation * len(whole) // 2 + position] ^= 1
    path.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(OSError, match=r"is damaged .* move the journal away"):
            started(PosixFileSystem(), tmp_path)
    assert path.read_bytes() == damaged
    path.write_bytes(whole)
    logs = started(PosixFileSystem(), tmp_path)
    assert values_of(read_all(logs.open(*topic(0), CONFIG))) == [b"value", b"acked", b"acked"]


def test_no_entry_is_written_before_the_one_before_it_is_on_disk(tmp_path):
    """A start would take that one for damaged, when it was torn."""

    async def life():
        fs = FailingFileSystem()
        logs, (log, other, third) = await serving(fs, tmp_path)
        append(log)
        append(other)
        await commit(logs, log, other)
        fs.before = fail("sync", suffix=PATH, code=errno.EIO)
        append(third)
        await commit(logs, third)
        written = []

        def before(operation, path):
            written.append((operation, path.rpartition("/")[2]))
            fail("sync", suffix=PATH, code=errno.EIO)(operation, path)

        fs.before = before
        with pytest.raises(OSError):
            await logs.commit.void(other.key)
        assert ("write_at", PATH) not in written

    run(life())


def test_a_full_disk_at_the_start_is_tried_again(tmp_path):
    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log, (b"journaled",))
        await commit(logs, log)

    async def second():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        fs.before = fail("write", suffix=".log")
        with pytest.raises(OSError):
            logs.open(*topic(0), CONFIG)
        fs.before = succeed
        assert values_of(read_all(logs.open(*topic(0), CONFIG))) == [b"value", b"journaled"]

    run(first())
    path = tmp_path / "topic0-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    run(second())


def test_a_compacted_log_that_has_rolled():
    """The name of its new segment may be on disk before the end of the old one: that is no gap of compaction."""

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data", config=COMPACTED)
        for number in range(3):
            append(log, (b"acked%d" % number,), keys=(b"k%d" % number,))
            await commit(logs, log)
        append(log, (b"x" * 2000,), keys=(b"large",))
        assert len(log.segments) == 2
        machine.fs.sync_dir(log.directory)

    async def second(machine):
        logs = started(machine.fs, "data")
        log = logs.open(*topic(0), COMPACTED)
        assert values_of(read_all(log))[:4] == [b"value", b"acked0", b"acked1", b"acked2"]
        assert logs.damaged == {}

    restarted(first, second, range(60))


def test_the_gaps_that_compaction_left_are_no_damage():
    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data", config=COMPACTED)
        for offset in (3, 7, 9):  # As a follower gets them.
            copied = batch(offset, (b"v%d" % offset,), keys=(b"k",))
            log.append(copied, offset, read_header(copied).max_timestamp)
            await commit(logs, log)

    async def second(machine):
        logs = started(machine.fs, "data")
        log = logs.open(*topic(0), COMPACTED)
        assert values_of(read_all(log)) == [b"value", b"v3", b"v7", b"v9"]
        assert (log.log_end, log.failure) == (10, None)

    restarted(first, second)


def test_the_gaps_that_compaction_left_do_not_cut_off_what_was_synced_behind_them():
    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data", config=COMPACTED)
        for offset, size in ((3, 1), (7, 1), (8, PIECE_BYTES_MAX)):  # As a follower gets them, the last one by itself.
            copied = batch(offset, (b"." * size,), keys=(b"k",))
            log.append(copied, offset, read_header(copied).max_timestamp)
            await commit(logs, log)
        assert is_filed(log)

    async def second(machine):
        logs = started(machine.fs, "data")
        log = logs.open(*topic(0), COMPACTED)
        assert (log.log_end, len(read_all(log)), log.failure) == (9, 4, None)

    restarted(first, second)


@pytest.mark.parametrize("config", [CONFIG, TopicConfig(cleanup_policy=frozenset({"compact"}))])
@pytest.mark.parametrize("number", [1, 2])
def test_a_torn_base_offset_is_no_gap_of_compaction(tmp_path, config, number):
    """It is outside of the checksum: a log that seemed to end far behind would pass over what the journal has."""
    ends = []

    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path, config=config)
        for value in (b"acked", b"acked too"):
            ends.append(log.active.size)
            append(log, (value,), keys=(value,))
            await commit(logs, log)
        assert (log.synced_end, log.filed_end) == (3, 1)

    async def second():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(0), config)
        logs.end_replay(())
        assert (log.log_end, log.failure) == (3, None)
        assert values_of(read_all(log)) == [b"value", b"acked", b"acked too"]

    run(first())
    path = tmp_path / "topic0-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[ends[number - 1] + 4] ^= 1
    path.write_bytes(content)
    run(second())


def test_a_new_log_in_the_place_of_one_that_is_being_deleted_keeps_its_records():
    """The old one has nothing in the journal: nothing of it is to be declared void, least of all what came after it."""

    async def first(machine):
        logs, _ = await serving(machine.fs, "data")
        log = logs.open(*topic(9), CONFIG)
        append(log, (b"x" * 100_000,))
        held, carry_out = asyncio.Event(), machine.fs.run

        async def slowly(function):
            await held.wait()
            return await carry_out(function)

        machine.fs.run = slowly
        logs.commit.request(log)
        await asyncio.sleep(0.01)
        machine.fs.run = carry_out
        logs.delete(topic(9)[0])
        again = logs.open(*topic(9), CONFIG)
        for number in range(4):
            append(again, (b"new%d" % number,))
            await commit(logs, again)
        assert (again.synced_end, again.filed_end) == (4, 1)
        held.set()
        await asyncio.sleep(1)

    async def second(machine):
        logs = started(machine.fs, "data")
        assert values_of(read_all(logs.open(*topic(9), CONFIG))) == [b"new0", b"new1", b"new2", b"new3"]

    restarted(first, second)


def test_an_older_generation_is_found_as_a_whole_or_not_at_all():
    """Else the records of a log could be found, and not that they are void."""

    async def first(machine, cut_after):
        logs, (log, other, _) = await serving(machine.fs, "data")
        append(log, (b"cut",))
        await commit(logs, log)
        await logs.truncate(log, Offset(1))
        while logs._journal._generation < 1:
            append(other, (b"x" * 300,))
            await commit(logs, other)
        await until(lambda: not logs._journal._owing[0])
        while logs._journal._generation < 2:
            machine.disk.cut_power_at = None
            append(other, (b"x" * 300,))
            machine.disk.cut_power_at = machine.disk.operations + cut_after
            await commit(logs, other)

    async def second(machine):
        logs = started(machine.fs, "data")
        assert values_of(read_all(logs.open(*topic(0), CONFIG))) == [b"value"]

    for cut_after in range(1, 6):
        for seed in range(30):
            machine = Machine(seed)
            with contextlib.suppress(Killed):
                machine.run(first(machine, cut_after))
            machine.cut_power()
            machine.run(second(machine))


def test_nothing_is_cut_off_while_the_journal_cannot_forget_it(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, (log, failed, _) = await serving(fs, tmp_path)
        append(failed)
        append(log)
        await commit(logs, failed, log)
        failed.fail("for this test")  # What the journal has of it is all that a start will find.
        fs.before = fail("write_at", suffix=PATH)
        with pytest.raises(Refused, match="journal"):
            await logs.truncate(log, Offset(1))
        assert log.log_end == 2
        assert (tmp_path / PATH).exists()

    run(life())


def test_a_file_that_cannot_be_read_back_holds_up_nobody(tmp_path):
    async def life():
        logs, (bad, good, _) = await serving(PosixFileSystem(), tmp_path)

        def unreadable():
            raise OSError(errno.EIO, "unreadable")

        bad.begin_journaling = unreadable
        append(bad)
        append(good)
        await commit(logs, bad, good)
        assert (bad.synced_end, good.synced_end) == (2, 2)
        assert is_filed(bad)
        assert not is_filed(good)

    run(life())


def test_a_journal_that_could_not_be_written_to_is_used_again(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, (log, other, _) = await serving(fs, tmp_path)
        append(other)
        await commit(logs, other)
        journaled = 0
        for number in range(100):
            fs.before = fail("write_at", suffix=PATH) if number in (12, 13, 14, 40) else succeed
            append(log, (b"x" * 300,))
            await commit(logs, log)
            journaled += not is_filed(log)
            await asyncio.sleep(0)
        assert log.synced_end == 101
        assert journaled > 80

    run(life())


def test_no_more_logs_owe_a_half_than_may(tmp_path, monkeypatch):
    async def life():
        monkeypatch.setattr("penstock.storage.journal.OWING_MAX", 5)
        logs, opened = await serving(PosixFileSystem(), tmp_path, count=12)
        for log in opened:
            append(log)
        await commit(logs, *opened)
        assert all(log.synced_end == 2 for log in opened)
        assert len(logs._journal.owing) == 5

    run(life())


def test_a_log_with_a_place_takes_none_of_the_others(tmp_path, monkeypatch):
    async def life():
        monkeypatch.setattr("penstock.storage.journal.OWING_MAX", 5)
        logs, opened = await serving(PosixFileSystem(), tmp_path, count=12)
        for entry in (opened[:4], opened):
            for log in entry:
                append(log)
            await commit(logs, *entry)
        assert logs._journal.owing == opened[:5]

    run(life())


def open_files(opened):
    return sum(segment._file is not None for log in opened for segment in log.segments)


def test_logs_that_owe_the_journal_leave_files_to_others(tmp_path):
    async def life():
        options = {"files_max": 40, "penstock_journal_bytes": 1 << 20}
        logs, opened = await serving(PosixFileSystem(), tmp_path, count=200, **options)
        for log in 3 * opened:
            append(log)
            await commit(logs, log)
            assert open_files(opened) <= 40
        assert len(logs._journal.owing) == 10
        assert all(log.synced_end == 4 for log in opened)

    run(life())


@pytest.mark.parametrize("journal_bytes", [0, 1 << 20])
def test_files_that_were_all_in_use_at_once_do_not_stay_open(tmp_path, journal_bytes):
    async def life():
        options = {"files_max": 40, "penstock_journal_bytes": journal_bytes}
        logs, opened = await serving(PosixFileSystem(), tmp_path, count=200, **options)
        for log in opened:
            append(log)
        await commit(logs, *opened)
        assert open_files(opened) > 40
        await logs.checkpoint()
        assert open_files(opened) <= 40

    run(life())


def test_who_comes_later_gets_the_places_of_those_that_are_idle(tmp_path):
    async def life():
        options = {"files_max": 40, "penstock_journal_bytes": 1 << 20}
        logs, opened = await serving(PosixFileSystem(), tmp_path, count=20, **options)
        idle, busy = opened[:10], opened[10:]
        for log in opened:
            append(log)
        await commit(logs, *opened)
        assert logs._journal.owing == idle
        for _ in range(TURNED_AWAY_TIMES + 1):
            assert all(is_filed(log) for log in busy)
            for log in busy:
                append(log)
            await commit(logs, *busy)
        assert not any(is_filed(log) for log in busy)
        await until(lambda: logs._journal.owing == busy)

    run(life())


def test_logs_that_are_all_busy_share_many_syncs_for_each_of_their_own(tmp_path):
    """Were their places given to others at once, each would be synced as often as without a journal, and in it too."""

    async def life():
        fs = FailingFileSystem()
        options = {"files_max": 40, "penstock_journal_bytes": 1 << 20}
        logs, opened = await serving(fs, tmp_path, count=30, **options)
        fs.syncs.clear()
        rounds = 100
        for _ in range(rounds):
            for log in opened:
                append(log)
            await commit(logs, *opened)
        await until(lambda: not logs.commit._background)
        generations = logs._journal._generation
        assert 0 < generations <= rounds * 20 // (TURNED_AWAY_TIMES * 10)
        own = sum(not path.endswith(PATH) for path in fs.syncs)
        assert own <= rounds * 20 + generations * 10

    run(life())


def test_a_request_for_the_file_counts_from_when_it_is_made(tmp_path):
    async def life():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log, (b"x" * PIECE_BYTES_MAX,))
        logs.commit.request(log)
        await asyncio.sleep(0)  # That sync has begun, and covers nothing of what follows.
        append(log)
        logs.commit.request(log, is_filed=True)
        await logs.commit.finish(log)
        assert is_filed(log)

    run(life())


def test_a_log_that_is_deleted_while_its_entry_waits_leaves_nothing_behind():
    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data")
        append(log, (b"gone",))
        async with logs.commit._journal_lock:
            logs.commit.request(log)
            await asyncio.sleep(0.01)
            logs.delete(topic(0)[0])
        await asyncio.sleep(1)
        assert logs._journal.owing == []
        again = logs.open(*topic(0), CONFIG)
        append(again, (b"new",))
        await commit(logs, again)

    restarted(first, finds([b"new"]))


def test_who_is_told_of_a_sync_and_fails_spoils_it_for_nobody(tmp_path):
    async def life():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        logs, (log, other, third) = await serving(PosixFileSystem(), tmp_path)

        def fails():
            raise ValueError(f"of {len(told)}")

        log.on_synced = fails
        append(log)
        append(other)
        await commit(logs, log, other)
        assert other.synced_end == 2
        assert told == ["of 0"]
        third.on_synced = fails
        append(third, (b"x" * PIECE_BYTES_MAX,))
        await commit(logs, third)
        assert told == ["of 0", "of 1"]
        for failed in (log, third):  # Nobody waits for it in vain.
            with pytest.raises(Refused, match="told of its sync"):
                append(failed)

    run(life())


@pytest.mark.parametrize("method", ["takes", "fits", "write", "sync"])
def test_an_entry_that_fails_for_a_reason_of_ours_leaves_nobody_waiting(tmp_path, method):
    async def life():
        told, failed = [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        logs, (log, other, third) = await serving(PosixFileSystem(), tmp_path)
        for one in (log, other):
            one.on_failed = lambda one=one: failed.append(one)
            append(one)
            logs.commit.request(one)
        works = getattr(logs._journal, method)

        def fails(*_, **__):
            append(third)  # For the next entry.
            logs._journal.__dict__[method] = works
            logs.commit.request(third)
            raise ValueError("for this test")

        logs._journal.__dict__[method] = fails
        await logs.commit.finish()
        assert told == ["for this test"]
        assert failed == [log, other]
        for one in (log, other):
            assert (one.flush_in_flight, one.synced_end) == (False, 1)
            with pytest.raises(Refused, match="its entry could not be written"):
                append(one)
        assert (third.failure, third.synced_end) == (None, 2)
        assert logs.offline is None

    run(life())


def test_a_stop_is_not_clean_while_the_journal_is_needed(tmp_path):
    async def life():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log)
        await commit(logs, log)
        log.flush_in_flight = True  # It cannot be synced any more, for whatever reason.
        await logs.stop()

    run(life())
    assert (tmp_path / PATH).exists()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_nobody_syncs_a_log_while_the_journal_forgets_it(tmp_path):
    async def life():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        for _ in range(4):
            append(log)
        await commit(logs, log)
        async with logs.commit._journal_lock:
            truncation = asyncio.create_task(logs.truncate(log, Offset(2)))
            await until(lambda: log.flush_in_flight and is_filed(log) and not logs.commit._tasks)
            log.put_side_file("leader-epoch-checkpoint", b"0\n0\n")
            logs.commit.request(log, is_whole=False)
        await truncation
        await logs.commit.finish()
        assert (log.filed_end, log.synced_end, log.log_end) == (2, 2, 2)

    run(life())


def test_a_log_is_not_made_anew_while_the_journal_cannot_forget_the_one_before(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, (log, failed, other) = await serving(fs, tmp_path)
        append(log)
        append(failed)
        await commit(logs, log, failed)
        failed.fail("for this test")  # It needs the journal, which so cannot be removed.
        fs.before = fail("write_at", suffix=PATH)
        logs.delete(topic(0)[0])
        for _ in range(2):
            with pytest.raises(OSError, match="not yet forgotten"):
                logs.open(*topic(0), CONFIG)
            await asyncio.sleep(0.05)
        append(other)
        await commit(logs, other)
        assert other.synced_end == 2
        assert logs.offline is None

    run(life())


def test_a_log_is_made_anew_once_the_journal_has_forgotten_the_one_before():
    """Also of what it gets before its first sync something may be on disk when the power goes."""

    async def first(machine):
        logs, (log, other, _) = await serving(machine.fs, "data")
        for number in range(1, 4):
            append(log, (b"old%d" % number,))
        await commit(logs, log)
        carry_out = machine.fs.sync

        async def slowly(file):
            if file.path.endswith(PATH):
                await asyncio.sleep(1)
            return await carry_out(file)

        machine.fs.sync = slowly
        append(other)
        logs.commit.request(other)
        await asyncio.sleep(0.05)
        logs.delete(topic(0)[0])
        again = None
        while again is None:
            with contextlib.suppress(OSError):
                again = logs.open(*topic(0), CONFIG)
            await asyncio.sleep(0.1)
        append(again, (b"new0",))
        append(again, (b"new1",))
        logs.commit.request(again)
        await logs.checkpoint()  # It syncs the data directory, and so all names that were made before.

    async def second(machine):
        logs = started(machine.fs, "data")
        found = values_of(read_all(logs.open(*topic(0), CONFIG)))
        assert found in ([], [b"new0"], [b"new0", b"new1"])

    restarted(first, second, range(60))


def test_what_is_known_of_a_half_is_forgotten_when_its_first_sector_is_on_disk():
    """A partition comes back meanwhile: the half may still be found with the records of the one before."""

    async def first(machine):
        logs, (log, other, _) = await serving(machine.fs, "data")
        journal = logs._journal
        append(log, (b"old1",))
        append(log, (b"old2",))
        await commit(logs, log)
        await fill(logs, other, generation=1)
        carry_out = machine.fs.sync

        async def never(file):
            if file.path.endswith(PATH) and journal._generation == 2:
                await asyncio.Event().wait()
            return await carry_out(file)

        machine.fs.sync = never
        while journal._generation < 2:
            append(other, (b"x" * 300,))
            logs.commit.request(other)
            await asyncio.sleep(0.05)
        assert journal.is_turned
        logs.delete(topic(0)[0])
        with pytest.raises(OSError, match="not yet forgotten"):
            logs.open(*topic(0), CONFIG)

    async def second(machine):
        logs = started(machine.fs, "data")
        try:
            found = values_of(read_all(logs.open(*topic(0), CONFIG)))
        except OSError:  # Its directory is gone, and the half is still found.
            logs.end_replay(())
            found = values_of(read_all(logs.open(*topic(0), CONFIG)))
        assert found in ([], [b"value", b"old1", b"old2"])  # Its deletion may not be on disk.

    restarted(first, second)


def test_what_a_producer_sends_is_never_taken_for_an_entry():
    """Behind the newest entry are the bytes of older ones: here some that look like the next."""

    async def first(machine):
        logs, (attacker, victim, other) = await serving(machine.fs, "data")
        journal = logs._journal
        append(attacker, (forged(victim.key, b"guessed."),))
        await commit(logs, attacker)
        await fill(logs, other, generation=1)
        await fill(logs, other, generation=2)
        append(victim, (b"acked",))
        await commit(logs, victim)
        while journal._position < PAGE_BYTES:  # What is left of a page is filled with zeros.
            append(other)
            await commit(logs, other)
        assert journal._position == journal._number * SECTOR_BYTES
        assert (journal._generation, victim.synced_end, victim.filed_end) == (2, 2, 1)

    async def second(machine):
        logs = started(machine.fs, "data")
        assert values_of(read_all(logs.open(*topic(1), CONFIG))) == [b"value", b"acked"]

    restarted(first, second)


def forged(victim, salt):
    """A value that would void a log's records, wherever in it the next entry is looked for."""
    for padding in range(SECTOR_BYTES):
        entries = [packed(salt, 2, number, [Piece(victim, VOID, NOWHERE, b"")]) for number in range(1, 12)]
        value = b"." * padding + b"".join(entries)
        start = ENTRY_HEAD_BYTES + PIECE_HEAD_BYTES + bytes(batch(1, (value,))).index(entries[0])
        if start % SECTOR_BYTES == 0:
            numbers = range(start // SECTOR_BYTES, start // SECTOR_BYTES + 11)  # Of entries of a sector each.
            return b"." * padding + b"".join(
                packed(salt, 2, number, [Piece(victim, VOID, NOWHERE, b"")]) for number in numbers
            )
    raise AssertionError


async def fill(logs, log, generation):
    """Write to the log until the journal turns to this generation, and nobody owes the half that comes next."""
    journal = logs._journal
    while journal._generation < generation:
        append(log, (b"x" * 300,))
        await commit(logs, log)
    await until(lambda: not journal._owing[journal._next_half])


def test_a_journal_from_before_a_clean_stop_is_set_aside(tmp_path):
    """An older version, which does not know it, has gone on from what there was without it."""

    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log, (b"journaled",))
        await commit(logs, log)

    async def older_version():
        logs = started(PosixFileSystem(), tmp_path, penstock_journal_bytes=0)
        log = logs.open(*topic(0), CONFIG)
        append(log, (b"other",))
        await commit(logs, log)
        await logs.stop()

    async def third():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(0), CONFIG)
        logs.end_replay(())
        assert values_of(read_all(log)) == [b"value", b"other"]

    run(first())
    path = tmp_path / "topic0-0" / "00000000000000000000.log"
    content = path.read_bytes()
    path.write_bytes(content[: read_header(content).size])
    (tmp_path / PATH).rename(tmp_path / "hidden")
    run(older_version())
    (tmp_path / "hidden").rename(tmp_path / PATH)
    run(third())
    assert (tmp_path / f"{PATH}-1-stray").exists()


@pytest.mark.parametrize(("points", "starts"), [(None, 3), (b"unreadable", 1)])
def test_damage_that_the_journal_tells_of_is_known_to_later_starts(tmp_path, points, starts):
    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log, (b"filed",))
        logs.commit.request(log, is_filed=True)
        await logs.commit.finish(log)
        append(log, (b"journaled",))
        await commit(logs, log)

    async def later():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(0), CONFIG)
        logs.end_replay(())
        return log.failure  # And is killed.

    run(first())
    path = tmp_path / "topic0-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    if points is not None:
        (tmp_path / RECOVERY_POINT_CHECKPOINT).write_bytes(points)
    for _ in range(starts):
        assert "damaged on disk" in run(later())


@pytest.mark.parametrize(
    ("config", "rolls"), [(CONFIG, 1), (CONFIG, 2), (TopicConfig(cleanup_policy=frozenset({"compact"})), 1)]
)
@pytest.mark.parametrize("lost", ["end", "sector", "offset"])
def test_without_recovery_points_a_closed_segment_gets_back_what_the_journal_has(tmp_path, config, rolls, lost):
    """A power cut just behind a roll: the name of the new file is on disk, and the end of the old one is not."""
    sizes = []

    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path, config=config)
        sizes.append(log.active.size)
        append(log, (b"journaled",), keys=(b"k",))
        await commit(logs, log)
        assert (log.synced_end, log.filed_end) == (2, 1)
        for _ in range(rolls):
            append(log, (b"unacked",), keys=(b"l",))
            log.roll()

    async def second():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(0), config)
        logs.end_replay(())
        assert (values_of(read_all(log)), log.failure) == ([b"value", b"journaled"], None)

    run(first())
    path = tmp_path / "topic0-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    if lost == "end":
        del content[sizes[0] :]
    elif lost == "sector":
        content[sizes[0] : sizes[0] + 20] = bytes(20)
    else:
        content[sizes[0] + 4] ^= 1
    path.write_bytes(content)
    (tmp_path / RECOVERY_POINT_CHECKPOINT).write_bytes(b"unreadable")
    run(second())


@pytest.mark.parametrize("is_damaged", [False, True])
def test_without_recovery_points_nothing_is_cut_that_was_synced_behind_what_the_journal_has(tmp_path, is_damaged):
    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path)
        append(log, (b"journaled",))
        await commit(logs, log)
        for _ in range(3):
            append(log, (b"x" * PIECE_BYTES_MAX,))
            await commit(logs, log)
            assert is_filed(log)
            log.roll()
        append(log, (b"acked",))
        await commit(logs, log)

    async def second():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(0), CONFIG)
        assert values_of(read_all(log))[-1] == b"acked"
        assert len(read_all(log)) == 6

    run(first())
    (tmp_path / RECOVERY_POINT_CHECKPOINT).write_bytes(b"unreadable")
    if is_damaged:  # One that the journal does not have.
        path = tmp_path / "topic0-0" / "00000000000000000003.log"
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    run(second())


def test_without_recovery_points_a_compacted_log_keeps_what_is_behind_its_gaps(tmp_path):
    async def first():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path, config=GAPPY)
        for key in (b"same", b"kept", b"same"):
            append(log, (b"journaled",), keys=(key,))
            await commit(logs, log)
        assert log.filed_end == 1
        for _ in range(2):
            append(log, (b"x" * PIECE_BYTES_MAX,), keys=(b"same",))
            await commit(logs, log)
        append(log, (b"acked",), keys=(b"acked",))
        await commit(logs, log)
        assert is_filed(log)
        await logs.cleaner.clean_all()
        return log.log_end, values_of(read_all(log))

    async def second(found):
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(*topic(0), GAPPY)
        assert (log.log_end, values_of(read_all(log)), log.failure) == (*found, None)

    found = run(first())
    assert len(found[1]) < found[0]
    (tmp_path / RECOVERY_POINT_CHECKPOINT).write_bytes(b"unreadable")
    run(second(found))


GAPPY = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1000, min_cleanable_dirty_ratio=0.0)


@pytest.mark.parametrize("journal_bytes", [0, JOURNAL_BYTES])
def test_compaction_waits_until_the_recovery_point_is_on_disk(journal_bytes):
    """A gap in what the journal has is a loss to a start, which drops what follows."""

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data", config=GAPPY, penstock_journal_bytes=journal_bytes)
        for number in range(4):
            append(log, (b"kept" + b"." * 150,), keys=(b"k%d" % number,))
            await commit(logs, log)
            append(log, (b"." * 300,), keys=(b"same",))
            await commit(logs, log)
            assert is_filed(log) == (journal_bytes == 0)
            log.roll()
        append(log, (b"." * 900,), keys=(b"same",))  # Too much to be put into one segment with others.
        await commit(logs, log)
        log.roll()
        append(log, (b"acked",), keys=(b"acked",))
        await commit(logs, log)
        assert is_filed(log)  # The first of a segment always is.
        carry_out, held = machine.fs.run, []

        async def slowly(function):
            if not held:
                held.append(function)
                await asyncio.Event().wait()
            return await carry_out(function)

        machine.fs.run = slowly
        checkpoint = asyncio.create_task(logs.checkpoint())
        await until(lambda: held)  # In memory it has moved already.
        await logs.cleaner.clean_all()
        checkpoint.cancel()

    async def second(machine):
        logs = started(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        log = logs.open(*topic(0), GAPPY)
        assert (values_of(read_all(log))[-1], log.failure) == (b"acked", None)

    restarted(first, second)


@pytest.mark.parametrize("journal_bytes", [0, JOURNAL_BYTES])
@pytest.mark.parametrize("count", [0, 1])
def test_a_log_that_was_cut_where_compaction_had_left_a_gap(journal_bytes, count):
    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data", config=COMPACTED, penstock_journal_bytes=journal_bytes)
        copied = batch(9, (b"uncommitted",), keys=(b"k",))
        log.append(copied, 9, read_header(copied).max_timestamp)
        await commit(logs, log)
        await logs.truncate(log, Offset(9))
        for _ in range(count):
            append(log, (b"acked",), keys=(b"k",))
            await commit(logs, log)
        await logs.checkpoint()

    async def second(machine):
        logs = started(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        log = logs.open(*topic(0), COMPACTED)
        assert (log.log_end, log.failure) == (9 + count, None)
        assert values_of(read_all(log)) == [b"value", b"acked"][: 1 + count]

    restarted(first, second)


def test_there_is_room_for_what_is_void_when_a_log_has_failed(tmp_path):
    async def life():
        logs, (failed, follower, other) = await serving(PosixFileSystem(), tmp_path)
        append(failed)
        append(follower)
        await commit(logs, failed, follower)
        failed.fail("for this test")  # It never gets around to what it owes.
        for _ in range(80):
            append(other, (b"x" * 300,))
            await commit(logs, other)
        append(follower)
        await commit(logs, follower)
        await logs.truncate(follower, Offset(1))
        assert follower.log_end == 1

    run(life())


def test_a_busy_log_holds_up_none_of_those_that_owe_a_half():
    async def life(machine):
        logs, opened = await serving(machine.fs, "data", count=12, penstock_journal_bytes=256 << 10)
        journal, busy = logs._journal, opened[0]
        for log in opened:
            append(log)
        await commit(logs, *opened)

        def go_on():
            append(busy, (b"x" * 300,))
            logs.commit.request(busy)

        busy.on_synced = go_on
        go_on()
        await until(lambda: journal._generation == 1)
        await until(lambda: not journal._owing[0])
        assert journal._generation == 1

    machine = Machine(1)
    machine.run(life(machine))


def test_none_is_made_for_logs_that_are_left_to_the_kernel(tmp_path):
    async def life():
        logs = started(PosixFileSystem(), tmp_path, penstock_journal_bytes=32 << 20)
        for number in range(20):
            logs.open(*topic(number), TopicConfig(durability="os"))
        logs.end_replay(())
        await logs.checkpoint()
        await logs.commit.finish()
        assert not logs.commit._background

    run(life())


def test_none_is_made_that_would_fill_the_disk():
    async def life(machine):
        logs = started(machine.fs, "data", penstock_journal_bytes=JOURNAL_BYTES)
        opened = [logs.open(*topic(number), CONFIG) for number in range(3)]
        logs.end_replay(())
        machine.disk.fill(2 * JOURNAL_BYTES)
        for log in opened:
            append(log)
        await commit(logs, *opened)
        await until(lambda: not logs.commit._background)
        assert all(log.synced_end == 1 for log in opened)
        assert not machine.fs.exists(f"data/{PATH}")

    machine = Machine(1)
    machine.run(life(machine))


@pytest.mark.parametrize("size", [JOURNAL_BYTES, JOURNAL_BYTES + 1000, JOURNAL_BYTES + 1023])
def test_halves_begin_with_a_sector(tmp_path, size):
    async def life():
        logs, (log, *_) = await serving(PosixFileSystem(), tmp_path, penstock_journal_bytes=size)
        while logs._journal._generation < 2:
            append(log, (b"x" * 300,))
            await commit(logs, log)
        assert logs._journal._half_bytes % SECTOR_BYTES == 0
        assert max(entry.generation for entry in read_journal((tmp_path / PATH).read_bytes())) == 2

    run(life())


def test_what_reads_well_but_is_on_no_disk_is_written_again():
    """The sync of a log's own file has failed, and so has the note of that; the next start has the same page cache."""
    found = [b"value", b"x" * 600, b"acked", b"unasked"]

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data")
        append(log, (b"x" * 600,))
        append(log, (b"acked",))
        await commit(logs, log)
        assert (log.synced_end, log.filed_end) == (3, 1)
        append(log, (b"unasked",))
        make = machine.disk.create

        def full(path):
            if path.endswith(SYNC_FAILED_MARKER):
                raise OSError(errno.ENOSPC, "full", path)
            return make(path)

        machine.disk.create = full
        machine.disk.fail_syncs.add(machine.disk.syncs + 1)
        logs.commit.request(log, is_filed=True)
        await logs.commit.finish(log)
        assert logs.offline
        assert not machine.fs.exists(f"data/{SYNC_FAILED_MARKER}")
        machine.disk.create = make

    async def second(machine):
        logs = started(machine.fs, "data")
        log = logs.open(*topic(0), CONFIG)
        logs.end_replay(())
        assert values_of(read_all(log)) == found
        assert not machine.fs.exists(f"data/{PATH}")

    for seed in range(20):
        machine = Machine(seed)
        machine.run(first(machine))
        machine.run(second(machine))
        machine.cut_power()
        machine.run(finds(found)(machine))


# Found by the fourth review


def hold_next_work(machine):
    """The next blocking work waits for the event; the other one says that it has come."""
    carry_out, gate, has_come = machine.fs.run, asyncio.Event(), asyncio.Event()

    async def slowly(function):
        if not has_come.is_set():
            has_come.set()
            await gate.wait()
        return await carry_out(function)

    machine.fs.run = slowly
    return gate, has_come


def test_a_checkpoint_on_its_way_does_not_outlive_a_truncation():
    """What the truncation wants is what was written last, and a later checkpoint is being written."""

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data", penstock_journal_bytes=0)
        await logs.checkpoint()
        for _ in range(3):
            append(log, (b"cut",))
        await commit(logs, log)
        gate, has_come = hold_next_work(machine)
        checkpoint = asyncio.create_task(logs.checkpoint())
        await has_come.wait()
        truncation = asyncio.create_task(logs.truncate(log, Offset(1)))
        await asyncio.sleep(0.5)
        gate.set()
        await asyncio.gather(checkpoint, truncation)
        append(log, (b"acked",))
        await commit(logs, log)
        assert log.synced_end == 2

    async def second(machine):
        log = started(machine.fs, "data", penstock_journal_bytes=0).open(*topic(0), CONFIG)
        assert log.failure is None
        assert values_of(read_all(log)) == [b"value", b"acked"]

    restarted(first, second, range(5))


def test_a_checkpoint_on_its_way_leaves_nothing_of_a_deleted_partition():
    new_id = UUID(int=999)

    async def first(machine):
        logs, _ = await serving(machine.fs, "data", penstock_journal_bytes=0)
        await logs.checkpoint()
        log = logs.open(*topic(9), CONFIG)
        for _ in range(3):
            append(log)
        await commit(logs, log)
        gate, has_come = hold_next_work(machine)
        checkpoint = asyncio.create_task(logs.checkpoint())
        await has_come.wait()
        logs.delete(topic(9)[0])
        await logs.checkpoint()
        again = logs.open(topic(9)[0], new_id, CONFIG)
        gate.set()
        await checkpoint
        append(again, (b"acked",))
        await commit(logs, again)

    async def second(machine):
        log = started(machine.fs, "data", penstock_journal_bytes=0).open(topic(9)[0], new_id, CONFIG)
        assert log.failure is None
        assert values_of(read_all(log)) == [b"acked"]

    restarted(first, second, range(5))


@pytest.mark.parametrize("is_from_0", [False, True])
def test_a_partition_that_is_made_anew_waits_until_the_last_journal_is_gone(is_from_0):
    """A start that is killed before that leaves a journal with records of the one before, for the next start."""

    async def first(machine):
        logs, _ = await serving(machine.fs, "data")
        log = logs.open(*topic(9), CONFIG)
        if not is_from_0:
            append(log)
        await commit(logs, log)  # For the files that are new.
        append(log, (b"gone",))
        await commit(logs, log)
        assert log.filed_end < log.synced_end
        await logs.commit._journal_lock.acquire()  # The power goes before the journal says that it is void.
        logs.delete(topic(9)[0])
        machine.fs.sync_dir("data")

    async def second(machine):
        logs = started(machine.fs, "data")
        for _ in range(2):
            with pytest.raises(OSError, match="was here before"):
                logs.open(*topic(9), CONFIG)
        machine.fs.sync_dir("data")

    async def third(machine):
        logs = started(machine.fs, "data")
        with pytest.raises(OSError, match="was here before"):
            logs.open(*topic(9), CONFIG)
        logs.end_replay([LogKey(topic(9)[1], 0)])
        log = logs.open(*topic(9), CONFIG)
        assert (log.failure, log.log_end) == (None, 0)

    for seed in range(5):
        machine = Machine(seed)
        for life in (first, second, third):
            machine.run(life(machine))
            machine.cut_power()


def test_a_log_that_is_deleted_while_it_is_cut_leaves_its_successor_alone():
    new_id = UUID(int=999)

    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data")
        for _ in range(8):
            append(log)
        await commit(logs, log)
        async with logs.commit._journal_lock:
            truncation = asyncio.create_task(logs.truncate(log, Offset(5)))
            await until(lambda: log.flush_in_flight and not logs.commit._tasks)
            logs.delete(topic(0)[0])
            again = logs.open(topic(0)[0], new_id, CONFIG)
            append(again, (b"acked",))
            await commit(logs, again)
            assert again.synced_end == 1
        with pytest.raises(Refused, match="deleted"):
            await truncation

    async def second(machine):
        log = started(machine.fs, "data").open(topic(0)[0], new_id, CONFIG)
        assert log.failure is None
        assert values_of(read_all(log)) == [b"acked"]

    restarted(first, second, range(5))


def test_nothing_is_void_after_a_failed_sync(tmp_path):
    """The entry before may be on no disk: no start would get as far as to what says it."""

    async def life():
        fs = FailingFileSystem()
        logs, (log, other, _) = await serving(fs, tmp_path)
        append(log, (b"old",))
        await commit(logs, log)
        fs.before = fail("sync", suffix=PATH, code=errno.EIO)
        append(other)
        await commit(logs, other)
        assert logs.offline
        fs.before = succeed  # As the kernel does: it tells of an error once, and calls the pages clean.
        logs.delete(topic(0)[0])
        await asyncio.gather(*logs._tasks)
        assert logs._journal.is_void_due(log.key)

    run(life())


def test_a_large_topic_that_is_deleted_holds_up_no_producer(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, (*deleted, kept) = await serving(fs, tmp_path, count=101, files_max=1000, penstock_journal_bytes=1 << 20)
        for log in (*deleted, kept):
            append(log)
        await commit(logs, *deleted, kept)
        assert kept.filed_end == 1
        fs.syncs.clear()
        for log in deleted:
            logs.delete(log.topic_partition)
        await asyncio.gather(*logs._tasks)
        assert not any(logs._journal.is_void_due(log.key) for log in deleted)
        append(kept)
        await commit(logs, kept)
        assert fs.syncs.count(f"{tmp_path}/{PATH}") == 2

    run(life())


# What is void of many logs


async def begin_cut(logs, log):
    """One that waits for the journal."""
    cut = asyncio.create_task(logs.truncate(log, Offset(1)))
    await until(lambda: log not in logs.commit._tasks and log.flush_in_flight)
    return cut


async def cut_together(logs, chosen):
    """Cuts of these logs that all wait for the journal, which is free again."""
    async with logs.commit._journal_lock:
        return await asyncio.gather(*(begin_cut(logs, log) for log in chosen))


def hold_journal(fs):
    """The next sync of the journal waits for the event; the other one says that it has come."""
    carry_out, gate, has_come = fs.sync, asyncio.Event(), asyncio.Event()

    async def slowly(file):
        if file.path.endswith(PATH) and not has_come.is_set():
            has_come.set()
            await gate.wait()
        await carry_out(file)

    fs.sync = slowly
    return gate, has_come


def test_many_logs_that_are_cut_hold_up_no_producer(tmp_path):
    """After a failover, for example."""

    async def life():
        fs = FailingFileSystem()
        options = {"files_max": 1000, "penstock_journal_bytes": 1 << 20}
        logs, (led, *followed) = await serving(fs, tmp_path, count=201, **options)
        for log in (led, *followed):
            append(log, (b"tail",))
        await commit(logs, led, *followed)
        cuts = await cut_together(logs, followed)
        fs.syncs.clear()
        append(led, (b"acked",))
        await commit(logs, led)
        assert fs.syncs.count(f"{tmp_path}/{PATH}") <= 2
        await asyncio.gather(*cuts)
        assert all(log.log_end == 1 for log in followed)
        assert fs.syncs.count(f"{tmp_path}/{PATH}") <= 2

    run(life())


def test_what_was_cut_off_of_many_logs_does_not_come_back():
    async def first(machine):
        logs, opened = await serving(machine.fs, "data", count=5)
        for log in opened:
            append(log, (b"cut",))
        await commit(logs, *opened)
        await asyncio.gather(*await cut_together(logs, opened))

    async def second(machine):
        logs = started(machine.fs, "data")
        for number in range(5):
            assert values_of(read_all(logs.open(*topic(number), CONFIG))) == [b"value"]

    restarted(first, second)


def test_a_cut_that_is_given_up_neither_spoils_the_others_nor_makes_anything_void():
    async def first(machine):
        logs, (log, *others) = await serving(machine.fs, "data")
        for one in (log, *others):
            append(one, (b"tail",))
        await commit(logs, log, *others)
        gate, has_come = hold_journal(machine.fs)
        cuts = [await begin_cut(logs, others[0])]
        await has_come.wait()
        given_up = await begin_cut(logs, log)
        given_up.cancel()
        await asyncio.wait([given_up])
        append(log, (b"acked",))
        entry = asyncio.create_task(commit(logs, log))
        cuts.append(await begin_cut(logs, others[1]))
        gate.set()
        await asyncio.gather(entry, *cuts)
        assert (log.synced_end, log.filed_end) == (3, 2)
        assert [other.log_end for other in others] == [1, 1]

    restarted(first, finds([b"value", b"tail", b"acked"]))


def test_who_gives_up_a_cut_leaves_the_journal_to_nobody_while_it_is_synced(tmp_path):
    """Of two syncs of a file that fails, the kernel may tell one that all is well."""

    async def life():
        fs = FailingFileSystem()
        logs, (log, *_) = await serving(fs, tmp_path)
        append(log)
        await commit(logs, log)
        gate, has_come = hold_journal(fs)
        cut = await begin_cut(logs, log)
        await has_come.wait()
        cut.cancel()
        await asyncio.wait([cut])
        assert logs.commit._journal_lock.locked()
        gate.set()
        await until(lambda: not logs.commit._journal_lock.locked())

    run(life())


def test_nobody_cuts_a_log_when_what_is_void_could_not_be_synced(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs, opened = await serving(fs, tmp_path)
        for log in opened:
            append(log)
        await commit(logs, *opened)
        fs.before = fail("sync", suffix=PATH, code=errno.EIO)
        cuts = await cut_together(logs, opened)
        assert [type(error) for error in await asyncio.gather(*cuts, return_exceptions=True)] == [Refused] * 3
        assert "the journal" in logs.offline
        assert [log.log_end for log in opened] == [2] * 3

    run(life())


def test_nobody_waits_for_a_journal_whose_fault_is_no_error_of_the_disk(tmp_path):
    async def life():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        logs, opened = await serving(PosixFileSystem(), tmp_path)
        for log in opened:
            append(log)
        await commit(logs, *opened)
        write, fault = logs._journal.write, ValueError("for this test")

        def fails(pieces, chosen):
            raise fault

        logs._journal.write = fails
        cuts = await cut_together(logs, opened)
        assert [type(error) for error in await asyncio.gather(*cuts, return_exceptions=True)] == [Refused] * 3
        logs._journal.write = write
        await asyncio.gather(*await cut_together(logs, opened))
        assert [log.log_end for log in opened] == [1] * 3
        gc.collect()
        assert told == [fault]

    run(life())


def test_a_cut_that_waits_makes_nothing_void_of_a_log_in_the_place_of_its_own():
    async def first(machine):
        logs, (known, unknown, _) = await serving(machine.fs, "data")
        append(known)
        await commit(logs, known)
        append(unknown)
        gate, has_come = hold_journal(machine.fs)
        cuts = [await begin_cut(logs, known)]
        await has_come.wait()
        cuts.append(await begin_cut(logs, unknown))
        logs.delete(topic(1)[0])
        again = logs.open(*topic(1), CONFIG)
        append(again, (b"new",))
        await commit(logs, again)
        append(again, (b"acked",))
        entry = asyncio.create_task(commit(logs, again))
        await asyncio.sleep(0.1)
        gate.set()
        await entry
        await asyncio.gather(*cuts, return_exceptions=True)
        assert (again.synced_end, again.filed_end) == (2, 1)

    async def second(machine):
        logs = started(machine.fs, "data")
        assert values_of(read_all(logs.open(*topic(1), CONFIG))) == [b"new", b"acked"]

    restarted(first, second)


# One at a time


async def cut_short(logs, log):
    await logs.truncate(log, Offset(2))


async def cut_whole(logs, log):
    await logs.start_over(log, Offset(100))


async def rolled(machine, journal_bytes):
    """A log of closed segments that compaction is due for, whose high watermark moves when a cut is done."""
    logs, (log, *_) = await serving(machine.fs, "data", config=GAPPY, penstock_journal_bytes=journal_bytes)
    for number in range(4):
        append(log, (b"old%d" % number,), keys=(b"k%d" % number,))
        await commit(logs, log)
        log.roll()
    append(log, (b"old",), keys=(b"k",))
    await commit(logs, log)
    await logs.checkpoint()
    high_watermark = log.log_end
    logs.last_stable_offset_of = lambda tp: high_watermark
    return logs, log


def when_cleaned(logs, act):
    """Do this once, when compaction has written a segment, before that is put in place."""
    drive = logs.cleaner._drive

    async def drive_and_act(work, partition_log):
        result = await drive(work, partition_log)
        if isinstance(result, CleanedSegment):
            logs.cleaner._drive = drive
            await act()
        return result

    logs.cleaner._drive = drive_and_act


@pytest.mark.parametrize("journal_bytes", [0, JOURNAL_BYTES])
@pytest.mark.parametrize("is_cut_first", [False, True])
@pytest.mark.parametrize(("cut", "left"), [(cut_short, [b"old0", b"new"]), (cut_whole, [b"new"])])
def test_a_log_is_not_cut_and_compacted_at_a_time(journal_bytes, is_cut_first, cut, left):
    """Compaction would put what is cut off in place again."""

    async def begin_with_the_cut(machine, logs, log):
        gate, has_come = hold_next_work(machine)
        cutting = asyncio.create_task(cut(logs, log))
        await has_come.wait()

        async def go_on():
            gate.set()
            await cutting

        when_cleaned(logs, go_on)
        await logs.cleaner.clean_all()
        await go_on()

    async def begin_with_compaction(machine, logs, log):
        cuts = []

        async def begin_cut():
            cuts.append(asyncio.create_task(cut(logs, log)))
            await asyncio.sleep(0.5)

        when_cleaned(logs, begin_cut)
        await logs.cleaner.clean_all()
        (cutting,) = cuts
        await cutting

    async def first(machine):
        logs, log = await rolled(machine, journal_bytes)
        await (begin_with_the_cut if is_cut_first else begin_with_compaction)(machine, logs, log)
        append(log, (b"new",), keys=(b"new",))
        await commit(logs, log)
        log.roll()
        logs.last_stable_offset_of = lambda tp: log.log_end
        await logs.cleaner.clean_all()
        assert logs.cleaner.cleaned_to == {log.topic_partition: log.log_end}  # Its turn has come.

    async def second(machine):
        log = started(machine.fs, "data", penstock_journal_bytes=journal_bytes).open(*topic(0), GAPPY)
        assert (values_of(read_all(log)), log.failure) == (left, None)

    restarted(first, second, range(5))


# Deleted and back


def fail_to_move(source, target):
    raise OSError(errno.EIO, "could not be renamed", source)


@pytest.mark.parametrize("journal_bytes", [0, JOURNAL_BYTES])
@pytest.mark.parametrize("number", [pytest.param(0, id="known to the start"), pytest.param(9, id="made since")])
def test_a_directory_that_a_deleted_log_has_left_is_looked_at_though_the_start_was_clean(journal_bytes, number):
    async def clean(machine):
        logs, _ = await serving(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        await logs.stop()

    async def first(machine):
        logs, _ = await serving(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        assert logs._marks.clean
        topic_partition, topic_id = topic(number)
        log = logs.logs.get(topic_partition) or logs.open(topic_partition, topic_id, CONFIG)
        append(log, (b"unsynced",))
        machine.fs.rename = fail_to_move
        logs.delete(topic_partition)
        del machine.fs.rename
        again = logs.open(topic_partition, topic_id, CONFIG)
        assert again.synced_end == again.log_end  # A leader hears of that, and counts on it.
        return values_of(read_all(again))

    async def second(machine, values):
        log = started(machine.fs, "data", penstock_journal_bytes=journal_bytes).open(*topic(number), CONFIG)
        assert log.failure is None
        assert values_of(read_all(log)) == values

    for seed in range(20):
        machine = Machine(seed)
        machine.run(clean(machine))
        values = machine.run(first(machine))
        assert values[-1] == b"unsynced"
        machine.cut_power()
        machine.run(second(machine, values))


@pytest.mark.parametrize("journal_bytes", [0, JOURNAL_BYTES])
@pytest.mark.parametrize("stops", [1, 2])
@pytest.mark.parametrize("is_killed", [pytest.param(True, id="killed"), pytest.param(False, id="not moved away")])
def test_a_clean_stop_says_nothing_of_a_directory_that_it_did_not_have_open(is_killed, stops, journal_bytes):
    async def first(machine):
        logs, (log, *_) = await serving(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        append(log, (b"unsynced",))
        if not is_killed:
            machine.fs.rename = fail_to_move
            logs.delete(topic(0)[0])
            del machine.fs.rename
            await logs.stop()

    async def elsewhere(machine):
        logs = started(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        for number in (1, 2):
            logs.open(*topic(number), CONFIG)
        logs.end_replay(())
        await logs.stop()

    async def back(machine):
        logs = started(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        assert logs._marks.clean
        log = logs.open(*topic(0), CONFIG)
        assert log.synced_end == log.log_end  # A leader hears of that, and counts on it.
        return values_of(read_all(log))

    for seed in range(20):
        machine = Machine(seed)
        machine.run(first(machine))
        for _ in range(stops):
            machine.run(elsewhere(machine))
        values = machine.run(back(machine))
        assert values[-1] == b"unsynced"
        machine.cut_power()
        machine.run(finds(values)(machine))
