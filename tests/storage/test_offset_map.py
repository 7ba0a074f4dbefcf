import tracemalloc

from penstock.storage.offset_map import ENTRIES_MAX, OffsetMap


def test_the_highest_offset_of_a_key_counts():
    latest = OffsetMap()
    latest.put([(b"a", 1), (b"b", 2), (b"a", 3)])
    assert len(latest) == 2
    assert not latest.is_latest(b"a", 1)
    assert latest.is_latest(b"a", 3)
    assert latest.is_latest(b"a", 4)
    assert latest.is_latest(b"unknown", 0)


def test_a_full_map_takes_no_more_keys():
    latest = OffsetMap(entries_max=3)
    assert latest.has_room(1000)  # Whatever one batch holds must fit, or a pass would never get anywhere.
    latest.put((b"%d" % number, number) for number in range(2))
    assert latest.has_room(1)
    assert not latest.has_room(2)


def test_a_full_map_takes_about_128_mebibytes():
    count = ENTRIES_MAX // 20
    tracemalloc.start()
    latest = OffsetMap()
    latest.put((b"key-%d" % number, number + 2**33) for number in range(count))
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes / count * ENTRIES_MAX < 140 << 20
