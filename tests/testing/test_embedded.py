"""The embedded broker is a real one, starts at once, and leaves nothing behind."""

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from clients import receive, send
from confluent_kafka.admin import AdminClient, ConfigResource

import penstock.testing
from penstock.base.config_key import InvalidConfig

WARM_START_S_MAX = 0.3  # Takes 10 ms; the rest, and four more attempts, are for machines that are busy.


def open_files() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The one that lists the directory.
            found.add(f"{entry.name} {entry.readlink()}")
    return found


def test_messages_go_through_it() -> None:
    with penstock.testing.broker() as broker:
        topic = broker.create_topic(partitions=3)
        send(broker.bootstrap_servers, topic, "one", "two", "three")
        assert sorted(receive(broker.bootstrap_servers, topic, 3)) == ["one", "three", "two"]


def test_it_starts_in_a_blink() -> None:
    with penstock.testing.broker():
        pass  # The first one pays for imports.
    took_s = []
    for _ in range(5):
        begun = time.perf_counter()
        with penstock.testing.broker():
            took_s.append(time.perf_counter() - begun)
    assert min(took_s) < WARM_START_S_MAX


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see open files")
def test_it_leaves_no_thread_file_or_directory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # Of its own: other tests' brokers come and go beside it.
    threads, files = set(threading.enumerate()), open_files()
    with penstock.testing.broker() as broker:
        broker.create_topic("used")
        (data_dir,) = tmp_path.iterdir()
        assert (data_dir / "used-0").is_dir()
    assert (set(threading.enumerate()), open_files()) == (threads, files)
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_do_not_meet() -> None:
    with penstock.testing.broker() as one, penstock.testing.broker() as other:
        one.create_topic("mine")
        assert one.bootstrap_servers != other.bootstrap_servers
        assert (one.topics(), other.topics()) == (["mine"], [])


def test_settings_have_kafkas_keys_and_python_values() -> None:
    with penstock.testing.broker({"num.partitions": 4, "auto.create.topics.enable": True}) as broker:
        send(broker.bootstrap_servers, "made-by-use", "hello")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert len(admin.list_topics("made-by-use", timeout=60).topics["made-by-use"].partitions) == 4


def test_topic_settings_are_kept() -> None:
    with penstock.testing.broker() as broker:
        topic = broker.create_topic(config={"retention.ms": 1234, "cleanup.policy": "compact"})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = admin.describe_configs([resource])[resource].result(60)
        assert (entries["retention.ms"].value, entries["cleanup.policy"].value) == ("1234", "compact")
        assert entries["penstock.durability"].value == "os"


def test_durability_can_be_that_of_production() -> None:
    with penstock.testing.broker(durability="fsync") as broker:
        topic = broker.create_topic()
        send(broker.bootstrap_servers, topic, "kept")
        assert receive(broker.bootstrap_servers, topic, 1) == ["kept"]


def test_a_bad_setting_is_raised_where_the_broker_was_to_start() -> None:
    with pytest.raises(InvalidConfig, match=r"no\.such\.key"):
        penstock.testing.broker({"no.such.key": 1}).start()


def test_a_refused_topic_says_why() -> None:
    with penstock.testing.broker() as broker:
        broker.create_topic("taken")
        with pytest.raises(ValueError, match=r"Cannot create the topic 'taken': .*exists"):
            broker.create_topic("taken")
        with pytest.raises(ValueError, match="Cannot delete the topic 'missing'"):
            broker.delete_topic("missing")


def test_a_stopped_broker_says_how_to_have_a_running_one() -> None:
    broker = penstock.testing.broker()
    with pytest.raises(RuntimeError, match=r"with penstock\.testing\.broker"):
        broker.create_topic()
    with broker:
        pass
    broker.stop()
    with pytest.raises(RuntimeError, match="started already"):
        broker.start()


def test_a_broker_that_nobody_stopped_does_not_keep_the_process() -> None:
    code = "import penstock.testing; b = penstock.testing.broker().start(); print(b.create_topic())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "topic-1\n", "")
