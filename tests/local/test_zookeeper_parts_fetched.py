"""Fetching ZooKeeper, and what is left of one that has stopped."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_zookeeper import zookeeper_ensemble
from penstock.local import zookeeper_jars
from penstock.local.java import PartMissing
from ports import is_open


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is served as a Maven repository."""
    folder = tmp_path / "repository"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PENSTOCK_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}")
        yield folder
        server.shutdown()


def test_jars_are_fetched_once_and_only_whole(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"the bytes of a jar"
    checksum = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(zookeeper_jars, "JARS", {"a/one.jar": checksum, "a/two.jar": checksum})
    (repository / "a").mkdir()
    (repository / "a" / "one.jar").write_bytes(content)
    cache = tmp_path / "cache"
    with pytest.raises(PartMissing, match=r"cannot be fetched from http://127\.0\.0\.1:\d+/a/two\.jar"):
        zookeeper_jars.zookeeper_jars(cache)
    (repository / "a" / "two.jar").write_bytes(b"something else")
    with pytest.raises(PartMissing, match=r"two\.jar is not what it should be"):
        zookeeper_jars.zookeeper_jars(cache)
    assert list(cache.iterdir()) == []
    (repository / "a" / "two.jar").write_bytes(content)
    folder = zookeeper_jars.zookeeper_jars(cache)
    assert sorted(path.name for path in folder.iterdir()) == ["one.jar", "two.jar"]
    (repository / "a" / "one.jar").unlink()
    assert zookeeper_jars.zookeeper_jars(cache) == folder


def test_nothing_is_left_of_an_ensemble(tmp_path: Path) -> None:
    with zookeeper_ensemble(tmp_path) as ensemble:
        (node,) = ensemble.nodes
        assert node.role() == "standalone"
        assert ensemble.leader() is node
    assert not node.is_running
    assert not is_open(node.port)
    assert [path.name for path in tmp_path.iterdir()] == ["zookeeper-1"]
