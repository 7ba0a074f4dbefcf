"""Opening a log after any stop: torn tails are cut, what was promised is never cut."""

import struct
from random import Random

import pytest

from penstock.base.errors import Refused
from penstock.storage.checkpoint import encode_lines
from penstock.storage.fs import PosixFile
from penstock.wire.batch import HEADER_BYTES, read_header

from .support import NOW_MS, FailingFileSystem, append, batch, flush, opened, read_all, recovered, values_of


@pytest.fixture
def fs():
    return FailingFileSystem()


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "topic-0")


def filled(fs, directory, count, *, size=50, **config):
    """A log of `count` batches of two records, synced and closed; gives the batches."""
    log = opened(fs, directory, **config)
    log.put_side_file("leader-epoch-checkpoint", encode_lines(["0 0"]))
    written = [append(log, [b"%04d" % number, b"x" * size], timestamp=NOW_MS + number) for number in range(count)]
    flush(log)
    log.close()
    return written


def log_path(directory, base=0):
    return f"{directory}/{base:020d}.log"


def rewrite(path, data):
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(data)


# Torn tails


def test_the_last_segment_cut_at_every_byte_of_its_last_three_batches_opens_with_exactly_the_whole_batches(
    fs, directory
):
    written = filled(fs, directory, 10)
    whole = b"".join(written)
    for size in range(len(b"".join(written[:7])), len(whole)):
        rewrite(log_path(directory), whole[:size])
        log, recovery = recovered(fs, directory, recovery_point=14)
        count = next(number for number in range(10, -1, -1) if len(b"".join(written[:number])) <= size)
        assert read_all(log) == written[:count]
        assert (log.log_end, log.synced_end) == (count * 2, count * 2)
        assert recovery.bytes_cut == size - len(b"".join(written[:count])) == size - fs.size(log_path(directory))
        assert not recovery.damaged
        log.close()


@pytest.mark.parametrize("tail", [b"\0" * 4096, bytes(range(256)) * 3, b"\xff" * 61])
def test_garbage_behind_the_last_batch_is_cut_and_appends_go_on(fs, directory, tail):
    written = filled(fs, directory, 5)
    rewrite(log_path(directory), b"".join(written) + tail)
    log = opened(fs, directory, recovery_point=10)
    written.append(append(log, [b"next"]))
    flush(log)
    log.close()
    assert read_all(opened(fs, directory, recovery_point=12)) == written


def test_a_cut_in_an_earlier_segment_drops_the_later_ones(fs, directory):
    written = filled(fs, directory, 9, segment_bytes=1024, size=300)
    data = bytearray(fs.read_all(log_path(directory, 4)))
    data[100] ^= 1
    rewrite(log_path(directory, 4), data)
    log, recovery = recovered(fs, directory, recovery_point=4, segment_bytes=1024)
    assert read_all(log) == written[:2]
    assert recovery.bytes_cut == len(b"".join(written[2:]))
    assert [name for name in fs.listdir(directory) if name.endswith(".log")] == [f"{base:020d}.log" for base in (0, 4)]
    written[2:] = [append(log, [b"instead"])]
    flush(log)
    log.close()
    assert read_all(opened(fs, directory, segment_bytes=1024)) == written


def test_segments_behind_a_lost_tail_are_dropped(fs, directory):
    """The end of a closed segment was never written back, but the next segment was: order must not have holes."""
    written = filled(fs, directory, 9, segment_bytes=1024, size=300)
    rewrite(log_path(directory, 4), written[2])
    log = opened(fs, directory, recovery_point=4, segment_bytes=1024)
    assert read_all(log) == written[:3]
    assert log.log_end == 6
    log.close()
    assert read_all(opened(fs, directory, recovery_point=6, segment_bytes=1024)) == written[:3]


def test_a_torn_header_whose_offset_alone_was_lost_is_cut(fs, directory):
    """Sectors are written in any order: here the one with the rest of the header and the records came first."""
    written = filled(fs, directory, 10)
    for lost_bytes in (8, 10):
        for recovery_point in (0, 10, 18):
            torn = bytes(lost_bytes) + written[9][lost_bytes:]
            rewrite(log_path(directory), b"".join(written[:9]) + torn)
            log, recovery = recovered(fs, directory, recovery_point=recovery_point)
            assert log.failure is None
            assert (log.log_end, recovery.bytes_cut, recovery.damaged) == (18, len(torn), [])
            log.close()


def test_a_compacted_log_keeps_what_is_behind_a_gap(fs, directory):
    written = filled(fs, directory, 9, segment_bytes=1024, size=300)
    rewrite(log_path(directory, 4), written[2])
    log = opened(fs, directory, recovery_point=4, segment_bytes=1024, cleanup_policy=("compact",))
    assert read_all(log) == written[:3] + written[4:]


@pytest.mark.parametrize("is_synced", [False, True])
def test_an_offset_that_no_segment_can_hold_is_none_behind_a_gap_of_compaction(fs, directory, is_synced):
    """The checksum does not cover it: a sector that was not written can leave any."""
    config = {"cleanup_policy": ("compact",), "index_interval_bytes": 100}
    written = filled(fs, directory, 5, **config)
    data = b"".join([*written[:3], struct.pack(">q", 2**62) + written[3][8:], written[4]])
    rewrite(log_path(directory), data)
    log, recovery = recovered(fs, directory, recovery_point=10 if is_synced else 6, **config)
    assert log.log_end == (10 if is_synced else 6)
    assert bool(recovery.damaged) == is_synced
    assert fs.read_all(log_path(directory)) == (data if is_synced else b"".join(written[:3]))


@pytest.mark.parametrize("far", [3_000_000_000, 5_000_000_000])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("is_synced", [False, True])
def test_batches_far_behind_all_others_are_kept(fs, directory, far, before, clean, is_synced):
    """A follower's: in the leader's log compaction has left nothing in between, more than an index can hold."""
    log = opened(fs, directory, cleanup_policy=("compact",))
    written = [append(log) for _ in range(before)]
    for offset in (far, far + 1, 2 * far):
        written.append(batch(offset))
        log.append(written[-1], offset, NOW_MS)
    log.roll()
    flush(log)
    log.close()
    end = 2 * far + 1
    log = opened(fs, directory, recovery_point=end if is_synced else 0, clean=clean, cleanup_policy=("compact",))
    assert (log.log_end, log.failure) == (end, None)
    assert read_all(log) == written
    assert all(segment.base_offset <= end for segment in log.segments)
    log.append(batch(end), end, NOW_MS)


def test_a_crash_right_after_a_roll_leaves_an_empty_segment_to_go_on_with(fs, directory):
    log = opened(fs, directory)
    written = [append(log)]
    log.roll()
    log.close()
    for recovery_point in (0, 1):
        log = opened(fs, directory, recovery_point=recovery_point)
        assert (log.log_end, log.active.base_offset, log.active.size) == (1, 1, 0)
        assert read_all(log) == written
        log.close()
    log = opened(fs, directory, recovery_point=1, clean=True)
    written.append(append(log))
    assert read_all(log) == written


def test_a_file_of_no_bytes_is_a_segment_of_no_records(fs, directory):
    fs.mkdir(directory)
    fs.open(log_path(directory, 5), create=True).close()
    log = opened(fs, directory)
    assert (log.log_start, log.log_end) == (5, 5)
    append(log)
    assert log.log_end == 6


def test_recovery_begins_at_the_recovery_point_not_at_the_start(fs, directory):
    filled(fs, directory, 200, index_interval_bytes=100)
    log = opened(fs, directory, recovery_point=400, clean=True, index_interval_bytes=100)
    log.store_indexes()
    log.close()
    _, recovery = recovered(fs, directory, recovery_point=380, index_interval_bytes=100)
    assert 10 * 130 < recovery.bytes_scanned < 15 * 150


def test_a_clean_start_reads_only_the_tail(fs, directory):
    filled(fs, directory, 200, index_interval_bytes=100)
    log = opened(fs, directory, recovery_point=400, index_interval_bytes=100)
    log.store_indexes()
    log.close()
    _, recovery = recovered(fs, directory, recovery_point=400, clean=True, index_interval_bytes=100)
    assert 0 < recovery.bytes_scanned < 1000


# Bit rot


def test_a_clean_start_reads_headers_and_no_bodies(fs, directory, monkeypatch):
    filled(fs, directory, 8, size=300_000)
    log = opened(fs, directory, recovery_point=16)
    log.store_indexes()
    log.close()
    sizes = []
    read = PosixFile.read
    monkeypatch.setattr(
        PosixFile, "read", lambda file, position, size: sizes.append(size) or read(file, position, size)
    )
    assert opened(fs, directory, recovery_point=16, clean=True).log_end == 16
    assert 0 < sum(sizes) < 100_000, "2.4 MB of records need not be read to find their end"


def flipped(data, bit):
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_thousand_random_bit_flips_above_the_recovery_point_are_cut(fs, directory):
    written = filled(fs, directory, 12)
    whole = b"".join(written)
    ends = [len(b"".join(written[: number + 1])) for number in range(12)]
    random = Random(1)
    for _ in range(1000):
        bit = random.randrange(len(whole) * 8)
        rewrite(log_path(directory), flipped(whole, bit))
        log, recovery = recovered(fs, directory, recovery_point=0)
        sound = sum(end <= bit // 8 for end in ends)
        assert read_all(log) == written[:sound], f"{bit=}"
        assert recovery.bytes_cut > 0
        log.close()


def test_reliability_rule_18_bit_flips_below_the_recovery_point_are_reported_and_nothing_is_cut(fs, directory):
    written = filled(fs, directory, 12)
    whole = b"".join(written)
    random = Random(2)
    for _ in range(1000):
        bit = random.randrange(len(whole) * 8)
        damaged = flipped(whole, bit)
        rewrite(log_path(directory), damaged)
        log, recovery = recovered(fs, directory, recovery_point=24)
        assert recovery.damaged, f"{bit=}"
        assert recovery.bytes_cut == 0
        log.close()
        assert fs.read_all(log_path(directory)) == damaged


def test_a_damaged_batch_in_the_middle_leaves_the_log_readable_behind_it(fs, directory):
    written = filled(fs, directory, 5)
    damaged = flipped(written[2], (HEADER_BYTES + 10) * 8)
    rewrite(log_path(directory), b"".join([*written[:2], damaged, *written[3:]]))
    log, recovery = recovered(fs, directory, recovery_point=10)
    assert len(recovery.damaged) == 1
    assert read_all(log, 6) == written[3:]
    assert read_all(log) == [*written[:2], damaged, *written[3:]]  # The consumer's checksum tells.
    appended = append(log)
    assert read_all(log, 10) == [appended]


def test_a_torn_tail_above_the_recovery_point_is_cut_even_when_there_is_damage_below(fs, directory):
    written = filled(fs, directory, 6)
    damaged = flipped(written[1], (HEADER_BYTES + 10) * 8)
    rewrite(log_path(directory), b"".join([written[0], damaged, *written[2:5], written[5][:-1]]))
    log, recovery = recovered(fs, directory, recovery_point=8)
    assert len(recovery.damaged) == 1
    assert recovery.bytes_cut == len(written[5]) - 1
    assert log.log_end == 10


def test_a_false_last_offset_of_a_damaged_batch_does_not_pass_for_the_recovery_point(fs, directory):
    """Its header would put the recovery point behind us, and the next batch would be cut as a torn tail."""
    written = filled(fs, directory, 6)
    damaged = bytearray(written[1])
    struct.pack_into(">i", damaged, 23, 2**30)
    data = b"".join([written[0], damaged, *written[2:]])
    rewrite(log_path(directory), data)
    log, recovery = recovered(fs, directory, recovery_point=12)
    assert recovery.damaged
    assert fs.read_all(log_path(directory)) == data
    assert read_all(log)[-1] == written[-1]


def test_a_log_that_cannot_be_followed_takes_no_more_records(fs, directory):
    written = filled(fs, directory, 6)
    damaged = bytearray(written[3])
    struct.pack_into(">i", damaged, 8, 2**20)
    rewrite(log_path(directory), b"".join([*written[:3], damaged, *written[4:]]))
    log = opened(fs, directory, recovery_point=12)
    assert log.failure is not None
    with pytest.raises(Refused):
        append(log)
    assert read_all(log) == written[:3]


def test_promised_records_that_are_missing_are_reported(fs, directory):
    written = filled(fs, directory, 6)
    rewrite(log_path(directory), b"".join(written[:4]))
    for clean in (True, False):
        log, recovery = recovered(fs, directory, recovery_point=12, clean=clean)
        assert recovery.damaged
        assert log.failure is not None
        assert read_all(log) == written[:4]


def test_offsets_are_not_used_twice_when_all_segments_are_gone(fs, directory):
    log, recovery = recovered(fs, directory, recovery_point=500)
    assert (log.log_start, log.log_end) == (500, 500)
    assert recovery.damaged
    append(log)
    assert log.log_end == 501


# The checkpoints that recovery leans on


def test_without_a_recovery_point_the_last_segment_is_recovered_and_the_others_are_not_cut(fs, directory):
    written = filled(fs, directory, 9, segment_bytes=1024, size=300)
    last = fs.read_all(log_path(directory, 16))
    rewrite(log_path(directory, 16), last + b"torn")
    log, recovery = recovered(fs, directory, None, segment_bytes=1024)
    assert (read_all(log), recovery.bytes_cut, recovery.damaged) == (written, 4, [])
    log.close()
    whole = fs.read_all(log_path(directory, 12))
    rewrite(log_path(directory, 12), whole[:-5])
    log, recovery = recovered(fs, directory, None, segment_bytes=1024)
    assert recovery.bytes_cut == 0
    assert recovery.damaged
    assert fs.read_all(log_path(directory, 12)) == whole[:-5]


def test_a_log_start_behind_the_end_is_not_believed(fs, directory):
    """One flipped bit in a checkpoint must not make a whole log disappear."""
    written = filled(fs, directory, 6)
    log, recovery = recovered(fs, directory, recovery_point=12, log_start=2**40)
    assert recovery.damaged
    assert log.log_start == 0
    assert read_all(log) == written


def test_a_log_that_may_lose_its_tail_goes_on_where_it_had_started(fs, directory):
    filled(fs, directory, 6, durability="os")
    log = opened(fs, directory, recovery_point=0, log_start=100, durability="os")
    assert (log.log_start, log.log_end) == (100, 100)
    written = append(log)
    log.close()
    reopened = opened(fs, directory, recovery_point=0, log_start=100, durability="os")
    assert read_all(reopened) == [written]


def test_it_does_so_also_when_segments_behind_its_end_have_been_dropped_before(fs, directory):
    written = filled(fs, directory, 9, durability="os", segment_bytes=1024, size=300)
    rewrite(log_path(directory, 4), written[2])
    log = opened(fs, directory, recovery_point=0, log_start=100, durability="os", segment_bytes=1024)
    assert (log.log_start, log.log_end) == (100, 100)
    assert [name for name in fs.listdir(directory) if name.endswith(".log")] == [f"{100:020d}.log"]


def test_the_start_of_the_log_is_remembered(fs, directory):
    written = filled(fs, directory, 6)
    log = opened(fs, directory, recovery_point=12, log_start=4)
    assert log.log_start == 4
    assert read_all(log) == written[2:]


# Indexes after a crash


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_reliability_rule_19_any_part_of_an_index_may_be_lost_in_a_crash(fs, directory, kind, clean):
    """The largest timestamp is at the beginning: losing it would let retention delete the segment too early."""
    log = opened(fs, directory, index_interval_bytes=100)
    written = []
    for number in range(40):
        timestamp = NOW_MS + (10**9 if number == 3 else number)
        written.append(append(log, [b"x" * 20], timestamp=timestamp))
        if number % 10 == 9:
            log.store_indexes()
    flush(log)
    log.close()
    path = f"{directory}/{0:020d}.{kind}"
    whole = fs.read_all(path)
    for size in range(0, len(whole) + 1, 4):
        rewrite(path, whole[:size])
        log = opened(fs, directory, recovery_point=40, clean=clean, index_interval_bytes=100)
        assert log.active.max_timestamp == NOW_MS + 10**9
        assert log.log_end == 40
        assert read_all(log, 20) == written[20:]
        log.close()


def test_an_index_that_leads_astray_does_not_decide_where_the_log_ends(fs, directory):
    log = opened(fs, directory, index_interval_bytes=100)
    trap = append(opened(fs, f"{directory}-trap"), [b"trap"])
    written = [append(log, [trap], timestamp=NOW_MS + number) for number in range(40)]
    flush(log)
    log.store_indexes()
    log.close()
    path = f"{directory}/{0:020d}.index"
    inside = len(b"".join(written[:-1])) + written[-1].index(trap)
    rewrite(path, fs.read_all(path)[:-8] + struct.pack(">II", 39, inside))
    for clean in (True, False):
        log, recovery = recovered(fs, directory, recovery_point=40, clean=clean, index_interval_bytes=100)
        assert (log.log_end, recovery.bytes_cut, recovery.damaged) == (40, 0, [])
        assert read_all(log) == written
        log.close()


def test_segments_that_were_scanned_get_whole_indexes(fs, directory):
    log = opened(fs, directory, segment_bytes=1024, index_interval_bytes=100)
    for number in range(20):
        append(log, [b"x" * 100], timestamp=NOW_MS + number)
    log.close()
    for segment in log.segments[:-1]:
        fs.remove(segment.path(".timeindex"))
    log = opened(fs, directory, segment_bytes=1024, index_interval_bytes=100)
    log.close()
    reopened = opened(fs, directory, recovery_point=20, segment_bytes=1024, clean=True)
    for segment in reopened.segments[:-1]:
        last = segment.stored_indexes().times.last()
        following = reopened.segments[reopened.segments.index(segment) + 1]
        assert last == (NOW_MS + following.base_offset - 1, following.base_offset - 1 - segment.base_offset)


# Leftovers


def test_leftovers_of_a_crash_are_cleared_away(fs, directory):
    written = filled(fs, directory, 3)
    for name in (
        f"{0:020d}.log.cleaned",
        f"{9:020d}.log.deleted",
        f"{9:020d}.index.swap",
        "leader-epoch-checkpoint.tmp",
    ):
        rewrite(f"{directory}/{name}", b"left over")
    log = opened(fs, directory, recovery_point=6)
    assert read_all(log) == written
    assert fs.listdir(directory) == [f"{0:020d}.log", "leader-epoch-checkpoint"]
    assert values_of(read_all(log))[::2] == [b"0000", b"0001", b"0002"]
    assert read_header(written[2]).base_offset == 4
