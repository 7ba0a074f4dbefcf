"""The wheel alone makes a broker: built here, installed into an empty environment elsewhere."""

import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel and what it depends on."""
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(ROOT))
    (wheel,) = place.glob("penstock-*.whl")
    venv.create(place / "venv", with_pip=True)
    pip = [str(place / "venv/bin/python"), "-m", "pip", "install", "--quiet"]
    run(*pip, "--require-hashes", "--requirement", str(ROOT / "requirements.lock"))
    run(*pip, str(wheel))
    return place


def run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}{result.stderr}"


def test_the_wheel_serves_and_stops_cleanly(environment: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [environment / "venv/bin/penstock", "serve", "--listen", "127.0.0.1:0", "--data", environment / "data"],
        cwd=environment,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, "the first line names the address"
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{found[1]}"})
        assert len(admin.list_topics(timeout=60).brokers) == 1
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_the_wheel_carries_its_types_and_licence(environment: Path) -> None:
    library = environment / "venv/lib"
    assert list(library.glob("python3.*/site-packages/penstock/py.typed"))
    assert list(library.glob("python3.*/site-packages/penstock-*.dist-info/licenses/LICENSE"))


def test_the_wheel_carries_the_spark_source_but_not_spark(environment: Path) -> None:
    (packages,) = (environment / "venv/lib").glob("python3.*/site-packages")
    assert (packages / "pyspark_penstock/__init__.py").exists()
    assert (packages / "pyspark_penstock_lake/__init__.py").exists()
    assert not (packages / "pyspark").exists()


def test_the_wheel_carries_the_templates_of_pipelines(environment: Path) -> None:
    (packages,) = (environment / "venv/lib").glob("python3.*/site-packages")
    templates = packages / "penstock/pipeline/templates"
    assert (templates / "dedupe/template.toml").exists()
    assert (templates / "dedupe/transformations/unique.py").exists()
