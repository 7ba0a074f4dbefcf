"""A log driven at random against a list of batches, through crashes, clean stops and retention."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.base.types import Offset
from penstock.wire.batch import read_header

from .support import NOW_MS, Machine, append, by_time, flush, opened, patient, split

CONFIG = {"segment_bytes": 1024, "index_interval_bytes": 150, "segment_index_bytes": 64}
DIRECTORY = "data/topic-0"


class LogModel(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed):
        self.machine = Machine(seed)
        self.machine.fs.mkdir(DIRECTORY)
        self.machine.fs.sync_dir("data")
        self.machine.fs.sync_dir(".")
        self.batches = []  # All that were ever appended and not lost, in order.
        self.synced = 0  # As last seen: from here on a crash may take what it likes.
        self.recovery_point = 0
        self.stored_start = 0
        self.open()

    def open(self, clean=False):
        self.log = opened(
            self.machine.fs,
            DIRECTORY,
            recovery_point=self.recovery_point,
            log_start=self.stored_start,
            clean=clean,
            **CONFIG,
        )

    @rule(count=st.integers(1, 3), size=st.sampled_from([0, 10, 100, 300, 1500]), minutes=st.integers(-3, 10))
    def append(self, count, size, minutes):
        base = self.log.log_end
        self.batches.append(append(self.log, [b"%d" % base + b"." * size] * count, timestamp=NOW_MS + minutes * 60_000))

    @rule()
    def roll(self):
        self.log.roll()

    @rule()
    def flush(self):
        flush(self.log)
        self.synced = self.log.synced_end

    @rule()
    def append_during_a_flush(self):
        begun = self.log.begin_flush()
        self.append(1, 100, 0)
        begun.run()
        self.log.on_flushed(begun)
        self.synced = self.log.synced_end

    @rule()
    def checkpoint(self):
        self.log.store_indexes()
        self.recovery_point, self.stored_start = self.log.synced_end, self.log.log_start

    @rule(part=st.floats(0, 1))
    def delete_records(self, part):
        self.log.advance_start(Offset(int(self.log.log_start + part * (self.synced - self.log.log_start))))

    @rule(count=st.integers(1, 3))
    def delete_segments(self, count):
        ends = [segment.base_offset for segment in self.log.segments[1:]] + [self.log.log_end]
        count = min(count, sum(end <= self.synced for end in ends), len(ends))
        if count and self.log.segments[count - 1].size:
            for path in self.log.delete_oldest(count):
                self.machine.fs.remove(path)

    @rule()
    def crash(self):
        self.machine.cut_power()
        self.open()
        assert self.log.failure is None
        assert self.log.log_end >= self.synced
        assert self.log.log_start >= self.stored_start
        self.batches = [one for one in self.batches if read_header(one).next_offset <= self.log.log_end]
        assert self.log.log_end == (read_header(self.batches[-1]).next_offset if self.batches else 0)
        self.synced = self.log.synced_end

    @rule()
    def kill(self):
        """As `kill -9`: the page cache survives."""
        end = self.log.log_end
        self.open()
        assert self.log.log_end == end
        self.synced = self.log.synced_end

    @rule()
    def stop(self):
        flush(self.log)
        self.checkpoint()
        end, start = self.log.log_end, self.log.log_start
        self.log.close()
        self.open(clean=True)
        assert (self.log.log_start, self.log.log_end) == (start, end)
        self.synced = self.log.synced_end

    @rule(part=st.floats(0, 1), bytes_max=st.sampled_from([0, 61, 200, 1000, 100_000]), at_least_one=st.booleans())
    def read(self, part, bytes_max, at_least_one):
        log = self.log
        start = Offset(int(log.log_start + part * (log.log_end - log.log_start)))
        expected = [one for one in self.batches if read_header(one).last_offset >= start]
        found = split(patient(lambda: log.read(start, bytes_max, log.log_end, at_least_one=at_least_one)))
        assert found == expected[: len(found)]
        assert sum(map(len, found)) <= bytes_max or (at_least_one and len(found) == 1)
        assert found or not at_least_one or not expected

    @rule(minutes=st.integers(-4, 11))
    def find_by_time(self, minutes):
        log, timestamp = self.log, NOW_MS + minutes * 60_000
        expected = next(
            (
                max(read_header(one).base_offset, log.log_start)
                for one in self.batches
                if read_header(one).max_timestamp >= timestamp and read_header(one).last_offset >= log.log_start
            ),
            None,
        )
        found = by_time(log, timestamp)
        assert (None if found is None else found.offset) == expected

    @invariant()
    def offsets_are_in_order(self):
        if hasattr(self, "log"):
            log = self.log
            assert 0 <= log.log_start <= log.log_end
            assert log.synced_end <= log.log_end
            assert log.segments[0].base_offset <= log.log_start
            assert [segment.is_active for segment in log.segments].count(True) == 1
            assert log.active.is_active


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
