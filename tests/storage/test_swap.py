import pytest

from penstock.storage.swap import carry_out_swap, close_swap, decide_swap, finish_swaps, store_sources

from .support import FailingFileSystem, append, batch, flush, opened, read_all


@pytest.fixture
def fs():
    return FailingFileSystem()


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "d").mkdir()
    return str(tmp_path / "d")


def put(fs, directory, base, suffix, content=b"x"):
    path = f"{directory}/{base:020d}{suffix}"
    if fs.exists(path):
        fs.remove(path)
    file = fs.open(path, create=True)
    file.write([content])
    file.close()


def names(fs, directory):
    return [name.lstrip("0") or "0" for name in fs.listdir(directory)]


def prepare(fs, directory):
    for base in (0, 10, 20):
        for suffix in (".log", ".index", ".timeindex"):
            put(fs, directory, base, suffix, b"old")
    for suffix in (".log.cleaned", ".index.cleaned", ".timeindex.cleaned"):
        put(fs, directory, 0, suffix, b"new")


def test_a_swap_puts_one_segment_in_the_place_of_its_sources(fs, directory):
    prepare(fs, directory)
    store_sources(fs, directory, 0, [0, 10])
    decide_swap(fs, directory, 0)
    moved = carry_out_swap(fs, directory, 0, [0, 10])
    close_swap(fs, directory, 0)
    assert len(moved) == 6
    for path in moved:
        fs.remove(path)
    assert names(fs, directory) == [".index", ".log", ".timeindex", "20.index", "20.log", "20.timeindex"]
    assert fs.read_all(f"{directory}/{0:020d}.log") == b"new"


def test_a_swap_that_was_not_decided_is_undone(fs, directory):
    prepare(fs, directory)
    store_sources(fs, directory, 0, [0, 10])
    put(fs, directory, 0, ".index.swap")
    finish_swaps(fs, directory, fs.listdir(directory))
    assert fs.read_all(f"{directory}/{0:020d}.log") == b"old"
    assert not any("swap" in name for name in fs.listdir(directory))


def test_reliability_rule_20_a_swap_that_was_decided_is_completed_from_wherever_it_stopped(fs, directory):
    class Crash(Exception):
        pass

    for stop_at in range(1, 40):
        for name in fs.listdir(directory):
            fs.remove(f"{directory}/{name}")
        prepare(fs, directory)
        store_sources(fs, directory, 0, [0, 10])
        decide_swap(fs, directory, 0)
        count = 0

        def crash(operation, path, stop_at=stop_at):
            nonlocal count
            count += 1
            if count == stop_at:
                raise Crash

        fs.before = crash
        try:
            carry_out_swap(fs, directory, 0, [0, 10])
            close_swap(fs, directory, 0)
            finished = True
        except Crash:
            finished = False
        fs.before = lambda operation, path: None
        finish_swaps(fs, directory, fs.listdir(directory))
        logs = [name for name in names(fs, directory) if name.endswith("log")]
        assert logs == [".log", "20.log"]
        assert fs.read_all(f"{directory}/{0:020d}.log") == b"new"
        assert not any("swap" in name for name in fs.listdir(directory))
        if finished:
            return
    pytest.fail("the swap never ran to its end")


def test_a_swap_that_kafka_had_begun_is_completed(fs, directory):
    """Kafka notes no sources, and may have removed them already: the new segment says what it replaces."""
    put(fs, directory, 10, ".log.swap", bytes(batch(10)) + bytes(batch(24)))
    put(fs, directory, 0, ".log", bytes(batch(0)))
    put(fs, directory, 20, ".log", bytes(batch(20, [b"x"] * 5)))
    put(fs, directory, 25, ".log", bytes(batch(25)))
    log = opened(fs, directory, recovery_point=26, cleanup_policy=("compact",))
    assert [segment.base_offset for segment in log.segments] == [0, 10, 25]
    assert read_all(log) == [bytes(batch(offset)) for offset in (0, 10, 24, 25)]


def test_files_of_other_kinds_are_left_alone(fs, directory):
    log = opened(fs, directory)
    written = append(log)
    log.put_side_file("leader-epoch-checkpoint", b"0\n0\n")
    flush(log)
    before = fs.listdir(directory)
    finish_swaps(fs, directory, before)
    assert fs.listdir(directory) == before
    assert read_all(log) == [written]
