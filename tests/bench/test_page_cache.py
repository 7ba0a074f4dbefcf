"""Memory is filled as far as it should be, and never for ever."""

from contextlib import closing
from pathlib import Path

import pytest
from bench.page_cache import FREE_BYTES, READ_BYTES, FullPageCache


def test_reading_ends_when_next_to_nothing_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [FREE_BYTES + 1] * 5
    monkeypatch.setattr("bench.page_cache.free_bytes", lambda: free.pop() if free else FREE_BYTES)
    with closing(FullPageCache(tmp_path)) as cache:
        cache.fill()
        assert cache.read_bytes == 5 * READ_BYTES


def test_reading_ends_after_a_whole_memory_where_holes_take_no_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.page_cache.MEMORY_BYTES", 4 * READ_BYTES)
    monkeypatch.setattr("bench.page_cache.free_bytes", lambda: FREE_BYTES + 1)
    with closing(FullPageCache(tmp_path)) as cache:
        cache.fill()
        assert cache.read_bytes == 4 * READ_BYTES
        cache.fill()
        assert cache.read_bytes == 8 * READ_BYTES
