from penstock.storage.limits import SegmentLimits

from .support import FailingFileSystem, append, flush, opened, read_all


class Holder:
    def __init__(self, in_use: bool = False) -> None:
        self.in_use = in_use
        self.closed = self.released = 0

    def maybe_close_file(self) -> bool:
        self.closed += not self.in_use
        return not self.in_use

    def maybe_release_indexes(self) -> bool:
        self.released += not self.in_use
        return not self.in_use


def test_the_longest_open_file_is_closed_first():
    limits = SegmentLimits(files_max=2)
    holders = [Holder() for _ in range(3)]
    for holder in holders:
        limits.on_file_opened(holder)
    assert [holder.closed for holder in holders] == [1, 0, 0]


def test_what_is_in_use_stays_open():
    limits = SegmentLimits(files_max=1, indexes_max=1)
    busy, idle, third = Holder(in_use=True), Holder(), Holder()
    for holder in (busy, idle, third):
        limits.on_file_opened(holder)
        limits.on_indexes_loaded(holder)
    assert (busy.closed, idle.closed, third.closed) == (0, 1, 0)
    assert (busy.released, idle.released, third.released) == (0, 1, 0)


def test_those_that_were_in_use_at_once_are_all_closed_later():
    limits = SegmentLimits(files_max=2)
    holders = [Holder(in_use=True) for _ in range(10)]
    for holder in holders:
        limits.on_file_opened(holder)
    for holder in holders:
        holder.in_use = False
    limits.on_file_opened(Holder())
    assert [holder.closed for holder in holders] == [1] * 9 + [0]


def test_a_forgotten_segment_is_not_closed_again():
    limits = SegmentLimits(files_max=1)
    gone = Holder()
    limits.on_file_opened(gone)
    limits.forget(gone)
    limits.on_file_opened(Holder())
    assert gone.closed == 0


def test_five_logs_with_two_open_files_stay_readable_and_appendable(tmp_path):
    limits = SegmentLimits(files_max=2, indexes_max=2)
    fs = FailingFileSystem()
    logs = [opened(fs, f"{tmp_path}/{number}", limits=limits, index_interval_bytes=0) for number in range(5)]
    written = [[] for _ in logs]
    for turn in range(4):
        for log, batches in zip(logs, written, strict=True):
            batches.append(append(log, [b"turn %d" % turn]))
            flush(log)
            open_count = sum(segment._file is not None for other in logs for segment in other.segments)
            assert open_count <= 2
            if turn == 1:
                log.roll()
    for log, batches in zip(logs, written, strict=True):
        assert read_all(log) == batches
        assert read_all(log, 3) == batches[3:]


def test_a_file_with_unsynced_records_stays_open(tmp_path):
    limits = SegmentLimits(files_max=1)
    logs = [opened(FailingFileSystem(), f"{tmp_path}/{number}", limits=limits) for number in range(3)]
    for log in logs:
        append(log)
    flushes = [log.begin_flush() for log in logs]
    for log, begun in zip(logs, flushes, strict=True):
        begun.run()
        log.on_flushed(begun)
        assert log.synced_end == 1
