import asyncio
import errno

import pytest

from penstock.base.errors import Refused
from penstock.storage.group_commit import ROUND_BYTES_MAX, GroupCommit

from .support import FailingFileSystem, append, fail, opened, run, succeed


class SlowFileSystem(FailingFileSystem):
    """Syncs wait until they are let go, one `permit` each."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(0)
        self.runs = 0

    async def run(self, function):
        self.runs += 1
        await self.permits.acquire()
        return function()


def committer():
    failures = []
    return GroupCommit(on_failure=lambda log, error: failures.append((log, error))), failures


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_appends_gather_while_a_sync_is_under_way(tmp_path):
    async def scenario():
        fs = SlowFileSystem()
        commit, _ = committer()
        log = opened(fs, str(tmp_path))
        ends = []
        log.on_synced = lambda: ends.append(log.synced_end)
        append(log)
        commit.request(log)
        await settle()
        for _ in range(1000):
            append(log)
            commit.request(log)
        assert fs.runs == 1
        fs.permits.release()
        await settle()
        assert ends == [1]
        fs.permits.release()
        await commit.finish()
        assert ends == [1, 1001]
        assert fs.runs == 2
        assert not log.flush_in_flight

    run(scenario())


def test_an_append_made_when_told_of_a_sync_starts_no_second_sync_beside_it(tmp_path):
    async def scenario():
        fs = SlowFileSystem()
        commit, _ = committer()
        log = opened(fs, str(tmp_path))
        ends = []

        def on_synced():
            ends.append(log.synced_end)
            if len(ends) < 4:
                append(log)
                commit.request(log)

        log.on_synced = on_synced
        append(log)
        commit.request(log)
        for expected in range(1, 5):
            await settle()
            assert fs.runs == expected
            fs.permits.release()
        await commit.finish()
        assert ends == [1, 2, 3, 4]

    run(scenario())


def test_logs_with_new_files_do_not_wait_for_each_other(tmp_path):
    async def scenario():
        fs = SlowFileSystem()
        commit, _ = committer()
        logs = [opened(fs, f"{tmp_path}/{number}") for number in range(2)]
        for log in logs:
            append(log)
            commit.request(log)
        await settle()
        assert fs.runs == 2
        fs.permits.release()
        await commit.finish(logs[0])
        assert [log.synced_end for log in logs] == [1, 0]
        fs.permits.release()
        await commit.finish()
        assert [log.synced_end for log in logs] == [1, 1]

    run(scenario())


class Rounds:
    """Logs of which only records are unsynced, and whose syncs wait to be let go."""

    def __init__(self, tmp_path, count):
        self.fs = SlowFileSystem()
        self.commit, self.failures = committer()
        self.logs = [opened(self.fs, f"{tmp_path}/{number}") for number in range(count)]

    async def begin(self):
        """What is new has been synced."""
        for log in self.logs:
            append(log)
            self.commit.request(log)
        await self.let_go(len(self.logs))
        self.fs.runs = 0

    async def append(self, *numbers, values=(b"value",)):
        for number in numbers:
            append(self.logs[number], values)
            self.commit.request(self.logs[number])
        await settle()

    async def let_go(self, count):
        for _ in range(count):
            self.fs.permits.release()
        await settle()

    @property
    def synced(self):
        return [log.synced_end for log in self.logs]


def test_logs_with_little_to_sync_are_synced_in_rounds(tmp_path):
    async def scenario():
        rounds = Rounds(tmp_path, 4)
        await rounds.begin()
        await rounds.append(0, 1)  # In one turn of the loop: together.
        assert rounds.fs.runs == 2
        await rounds.append(2)
        await rounds.append(3)
        await rounds.append(2)
        await rounds.let_go(1)
        assert (rounds.fs.runs, rounds.synced) == (2, [2, 1, 1, 1])  # The first is told at once.
        await rounds.append(0)
        await rounds.let_go(1)
        assert (rounds.fs.runs, rounds.synced) == (5, [2, 2, 1, 1])
        await rounds.let_go(3)
        assert (rounds.fs.runs, rounds.synced) == (5, [3, 2, 3, 2])
        await rounds.append(1)
        assert rounds.fs.runs == 6  # And nobody waits for a round that is over.
        await rounds.let_go(1)
        assert rounds.synced == [3, 3, 3, 2]

    run(scenario())


def test_a_log_with_more_to_sync_waits_for_no_round_and_holds_up_none(tmp_path):
    async def scenario():
        rounds = Rounds(tmp_path, 3)
        await rounds.begin()
        await rounds.append(0)
        await rounds.append(1, values=(bytes(ROUND_BYTES_MAX),))
        assert rounds.fs.runs == 2
        await rounds.let_go(1)
        assert rounds.synced == [2, 1, 1]
        await rounds.append(2)
        assert rounds.fs.runs == 3
        await rounds.let_go(2)
        assert rounds.synced == [2, 2, 2]

    run(scenario())


def test_a_log_of_which_only_the_journal_has_a_part_is_in_no_round(tmp_path):
    """That part is synced with the rest, and may be megabytes."""

    async def scenario():
        rounds = Rounds(tmp_path, 2)
        await rounds.begin()
        rounds.logs[0].filed_end -= 1
        await rounds.append(0)
        await rounds.append(1)
        assert rounds.fs.runs == 2
        await rounds.let_go(2)
        assert rounds.synced == [2, 2]

    run(scenario())


def test_who_waits_for_the_log_of_a_later_round_waits_for_its_sync(tmp_path):
    async def scenario():
        rounds = Rounds(tmp_path, 2)
        await rounds.begin()
        await rounds.append(0)
        await rounds.append(1)
        finishing = asyncio.create_task(rounds.commit.finish(rounds.logs[1]))
        await rounds.let_go(1)
        assert not finishing.done()
        await rounds.let_go(1)
        await finishing
        assert rounds.synced == [2, 2]

    run(scenario())


def test_a_sync_that_fails_ends_its_part_in_the_round(tmp_path):
    async def scenario():
        rounds = Rounds(tmp_path, 3)
        await rounds.begin()
        rounds.fs.before = fail("sync", suffix="0/00000000000000000000.log", code=errno.EIO)
        await rounds.append(0)
        await rounds.append(1, 2)
        rounds.logs[2].fail("its topic was deleted, say")
        await rounds.let_go(1)
        assert (len(rounds.failures), rounds.fs.runs) == (1, 2)
        assert not rounds.logs[2].flush_in_flight
        await rounds.let_go(1)
        await rounds.commit.finish()
        assert rounds.synced == [1, 2, 1]

    run(scenario())


def test_a_busy_log_does_not_keep_another_from_finishing(tmp_path):
    async def scenario():
        fs = FailingFileSystem()
        commit, _ = committer()
        busy, idle = opened(fs, f"{tmp_path}/busy"), opened(fs, f"{tmp_path}/idle")

        def again():
            append(busy)
            commit.request(busy)

        busy.on_synced = again
        again()
        append(idle)
        commit.request(idle)
        await asyncio.wait_for(commit.finish(idle), 60)
        assert idle.synced_end == 1
        busy.on_synced = lambda: None
        await commit.finish()

    run(scenario())


@pytest.mark.parametrize(("operation", "suffix"), [("sync", ".log"), ("sync", "metadata.tmp"), ("sync_dir", "")])
def test_after_a_failed_sync_nothing_is_synced_or_acked_again(tmp_path, operation, suffix):
    async def scenario():
        fs = FailingFileSystem()
        commit, failures = committer()
        log = opened(fs, str(tmp_path))
        acked = []
        log.on_synced = lambda: acked.append(log.synced_end)
        append(log)
        log.put_side_file("metadata", b"x")
        fs.before = fail(operation, suffix=suffix, code=errno.EIO)
        commit.request(log)
        await commit.finish()
        assert len(failures) == 1
        log.fail("as the log manager does")
        fs.before = succeed
        fs.syncs.clear()
        commit.request(log)
        await commit.finish()
        with pytest.raises(Refused):
            append(log)
        assert (acked, fs.syncs, log.synced_end) == ([], [], 0)

    run(scenario())


@pytest.mark.parametrize("method", ["run", "sync", "begin_flush"])
def test_a_sync_that_fails_for_a_reason_of_ours_leaves_nobody_waiting(tmp_path, method):
    def fails(*_, **__):
        raise RuntimeError("can't start new thread")

    async def scenario():
        told, failed = [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        fs = FailingFileSystem()
        commit, failures = committer()
        log, other = (opened(fs, f"{tmp_path}/{number}") for number in range(2))
        log.on_failed = lambda: failed.append(log)
        if method == "sync":  # Of a single file.
            append(log)
            commit.request(log)
            await commit.finish()
        synced_end = log.synced_end
        append(log)
        setattr(log if method == "begin_flush" else fs, method, fails)
        commit.request(log)
        commit.request(log)  # Another producer.
        await commit.finish()
        assert (told, failed) == (["can't start new thread"], [log])
        assert (log.flush_in_flight, log.synced_end) == (False, synced_end)
        with pytest.raises(Refused, match="it could not be synced"):
            append(log)
        vars(fs).pop(method, None)
        append(other)
        commit.request(other)
        await commit.finish()
        assert (other.failure, other.synced_end, failures) == (None, 1, [])

    run(scenario())


def test_a_sync_that_ends_after_the_log_has_failed_acks_nothing(tmp_path):
    async def scenario():
        fs = SlowFileSystem()
        commit, failures = committer()
        log = opened(fs, str(tmp_path))
        acked = []
        log.on_synced = lambda: acked.append(log.synced_end)
        append(log)
        commit.request(log)
        await settle()
        log.fail("another sync failed")
        fs.permits.release()
        await commit.finish()
        assert (acked, failures, log.synced_end) == ([], [], 0)

    run(scenario())


def test_side_files_are_on_disk_before_the_records_that_lean_on_them(tmp_path):
    """KIP-101: the start of a leader epoch is durable before the first record of that epoch."""
    fs = FailingFileSystem()
    log = opened(fs, str(tmp_path))
    log.put_side_file("leader-epoch-checkpoint", b"0\n1\n3 0\n")
    append(log)
    order = []
    fs.before = lambda operation, path: order.append((operation, path.rpartition("/")[2]))
    log.begin_flush().run()
    assert [operation for operation, _ in order] == ["sync", "sync_dir", "sync"]
    assert order[0][1].startswith("leader-epoch-checkpoint")
    assert order[-1][1].endswith(".log")
