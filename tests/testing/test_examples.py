"""Every example runs, against the embedded broker, and does what it says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_plugin import run_pytest

from penstock.testing import EmbeddedBroker

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(example: str, broker: EmbeddedBroker, topic: str) -> list[str]:
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic]
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    return result.stdout.splitlines()


def test_point_to_point_does_every_job(penstock_broker: EmbeddedBroker) -> None:
    lines = output_of("point_to_point.py", penstock_broker, penstock_broker.unused_topic_name())
    assert {line.partition("did ")[2].partition(" (")[0] for line in lines[:-1]} == {
        f"b'job {number}'" for number in range(30)
    }
    assert lines[-1].startswith("30 jobs done by ")


def test_publish_subscribe_tells_every_group_of_every_order(penstock_broker: EmbeddedBroker) -> None:
    lines = output_of("publish_subscribe.py", penstock_broker, penstock_broker.unused_topic_name())
    assert sorted(lines) == sorted(
        f"{group} hears of b'order {number}'" for group in ("billing", "shipping", "statistics") for number in range(5)
    )


def test_exactly_once_writes_one_invoice_for_each_order(penstock_broker: EmbeddedBroker) -> None:
    lines = output_of("exactly_once.py", penstock_broker, penstock_broker.unused_topic_name())
    assert lines[-1] == "100 invoices for 100 orders"
    assert sum(line.startswith("an accident") for line in lines) == 2


def test_the_test_file_for_newcomers_passes_where_it_is_copied_to(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "test_orders.py", tmp_path)
    result = run_pytest(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 passed" in result.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_no_example_is_left_out(path: Path) -> None:
    assert f'"{path.name}"' in Path(__file__).read_text()
