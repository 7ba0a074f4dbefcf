"""The pytest plugin: fixtures for whoever has Penstock installed, and no cost for whoever does not use them."""

import os
import subprocess
import sys
from pathlib import Path

from clients import receive, send

from penstock.testing import EmbeddedBroker

seen_topics: list[str] = []


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without other plugins, and without ours by its entry point: pytest will not load one plugin under two names.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "penstock.testing.plugin", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "--rootdir", str(directory), *arguments, str(directory)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_test_gets_a_topic_of_its_own(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    send(penstock_broker.bootstrap_servers, penstock_topic, "hello")
    assert receive(penstock_broker.bootstrap_servers, penstock_topic, 1) == ["hello"]
    seen_topics.append(penstock_topic)


def test_the_next_test_gets_another_and_the_first_is_gone(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    assert penstock_topic in penstock_broker.topics()
    assert penstock_topic not in seen_topics
    assert not set(seen_topics) & set(penstock_broker.topics())


def test_a_test_may_delete_its_topic_itself(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    penstock_broker.delete_topic(penstock_topic)


def test_topics_are_named_after_their_tests(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('text', ['ä/ö'])\n"
        "def test_it(penstock_topic, text):\n"
        "    assert penstock_topic.startswith('test_it-')\n"
    )
    result = run_pytest(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_settings_can_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def penstock_settings():\n"
        "    return {'no.such.key': 1}\n"
        "def test_it(penstock_broker): pass\n"
    )
    result = run_pytest(tmp_path)
    assert "unknown settings: no.such.key" in result.stdout


def test_a_folder_can_have_a_broker_of_its_own(tmp_path: Path) -> None:
    """pytest makes a session's fixture once, whoever overrides what it asks for: so the folder imports it anew."""
    for folder, count in (("first", 1), ("second", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text(
            "from confluent_kafka import Consumer\n"
            "def test_it(penstock_broker):\n"
            "    topic = penstock_broker.create_topic(partitions=-1)\n"
            "    consumer = Consumer({'bootstrap.servers': penstock_broker.bootstrap_servers, 'group.id': 'g'})\n"
            f"    assert len(consumer.list_topics(topic, timeout=60).topics[topic].partitions) == {count}\n"
            "    consumer.close()\n"
        )
    (tmp_path / "second" / "conftest.py").write_text(
        "import pytest\n"
        "from penstock.testing.plugin import penstock_broker\n"
        "@pytest.fixture(scope='session')\n"
        "def penstock_settings():\n"
        "    return {'num.partitions': 3}\n"
    )
    result = run_pytest(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout


def test_the_plugin_alone_imports_no_broker_and_no_client(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    ours = {name for name in sys.modules if name.startswith('penstock.')}\n"
        "    assert not {name for name in ours if not name.startswith('penstock.testing')}\n"
        "    assert 'confluent_kafka' not in sys.modules and 'asyncio' not in sys.modules\n"
    )
    result = run_pytest(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
