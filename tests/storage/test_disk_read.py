from penstock.storage.disk_read import with_disk
from penstock.storage.segment import NotCached

from .support import FailingFileSystem, append, opened, run


def test_a_look_up_is_repeated_until_every_byte_is_cached(tmp_path):
    fs = FailingFileSystem()
    log = opened(fs, str(tmp_path))
    written = append(log)
    misses = 3
    loaded = []

    def look_up():
        nonlocal misses
        if misses:
            misses -= 1
            miss = NotCached(log.active.file, 0, 10)
            miss.load = lambda: loaded.append(True)
            raise miss
        return bytes(log.read(0, 1000, log.log_end, at_least_one=True))

    assert run(with_disk(fs, look_up)) == written
    assert loaded == [True] * 3
