"""`penstock pipeline` as far as it goes without Spark."""

import subprocess
import sys

import pytest

from cli.conftest import run_penstock


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_makes_a_project_and_says_how_to_run_it(penstock, here):
    done = penstock("pipeline", "init", "clean", "--template", "dedupe", "--topic", "orders", "--set", "window=1 hour")
    assert done.code == 0
    assert "pipeline run clean" in done.out
    text = (here / "clean" / "spark-pipeline.yml").read_text()
    assert 'penstock.topic: "orders"' in text
    assert 'penstock.window: "1 hour"' in text


def test_init_as_json(penstock, here):
    done = penstock("pipeline", "init", "clean", "-t", "dedupe", "--topic", "orders", "--json")
    assert done.json == {"project": str(here / "clean"), "template": "dedupe"}


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("clean", "-t", "dedupe"), "needs a value for 'topic'", "--topic"),
        (("clean", "-t", "nothing", "--topic", "orders"), "no template 'nothing'", "dedupe"),
        (("clean", "-t", "dedupe", "--set", "window"), "--set window has no value", "KEY=VALUE"),
    ],
)
def test_init_says_what_is_wrong(penstock, here, arguments, message, hint):
    done = penstock("pipeline", "init", *arguments, "--json")
    assert done.code == 2
    assert message in done.error["message"]
    assert hint in done.error["hint"]
    assert not (here / "clean").exists()


def test_templates_are_listed_with_their_parameters(penstock):
    assert "dedupe" in {each["name"] for each in penstock("pipeline", "templates", "--json").json}
    done = penstock("pipeline", "templates", "dedupe")
    assert "10 minutes" in done.out
    assert "How long a key is remembered" in done.out


def test_help_does_not_wait_for_spark():
    program = "import sys; from penstock.cli.commands import commands; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
    assert run_penstock("pipeline", "--help").code == 0
