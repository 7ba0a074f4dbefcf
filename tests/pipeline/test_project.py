"""Projects are found, read, and run by one at a time."""

import json

import pytest

from penstock.pipeline import last_run
from penstock.pipeline.last_run import LastRun, only_run, read_last_run, write_last_run
from penstock.pipeline.project import DEPTH_MAX, ProjectRefused, find_projects, open_project


@pytest.fixture
def make(tmp_path):
    def make(path="p", text='name: p\nstorage: file:///data/my%20p\nconfiguration: {penstock.topic: "orders"}\n'):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "spark-pipeline.yml").write_text(text)
        return tmp_path / path

    return make


def test_a_project_is_its_folder_or_its_file(make):
    folder = make()
    for path in (folder, folder / "spark-pipeline.yml"):
        project = open_project(path)
        assert (project.folder, project.name) == (folder, "p")
        assert project.configuration == {"penstock.topic": "orders"}
        assert str(project.storage_folder) == "/data/my p"
    assert open_project(make("q", "name: q\nstorage: s3a://lake/q\n")).storage_folder is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: p\n", "'storage' is missing"),
        ("", "no settings"),
        ("name: [", "Cannot read"),
        ("name: p\nstorage: file:///s\nconfiguration: {a: 1}\n", "configuration 'a' is 1: put it in quotes"),
    ],
)
def test_what_makes_no_sense_is_said(make, text, message):
    with pytest.raises(ProjectRefused, match=message):
        open_project(make(text=text))


def test_no_project_is_said(tmp_path):
    with pytest.raises(ProjectRefused, match=r"it has no spark-pipeline\.yml") as refused:
        open_project(tmp_path)
    assert "pipeline init" in refused.value.hint


def test_projects_are_found_but_not_in_hidden_folders_nor_inside_others_nor_too_deep(make, tmp_path):
    make("b")
    make("a/one")
    make("a/one/inside")
    make(".hidden/p")
    make("/".join("12345678"[: DEPTH_MAX + 1]))
    found = [str(path.relative_to(tmp_path)) for path in find_projects(tmp_path)]
    assert found == ["a/one", "b"]


def test_the_last_run_is_remembered_and_one_that_died_is_found_out(make):
    project = open_project(make())
    assert read_last_run(project) is None
    with only_run(project):
        write_last_run(project, LastRun(started_ms=1))
        assert read_last_run(project).outcome == last_run.RUNNING
        with pytest.raises(ProjectRefused, match="running already"), only_run(project):
            pass
    assert read_last_run(project).outcome == last_run.DIED
    ended = LastRun(started_ms=1, ended_ms=2, outcome=last_run.FAILED, error="why", flows=[{"flow": "f"}])
    write_last_run(project, ended)
    assert read_last_run(project) == ended
    (project.notes / "last-run.json").write_text(json.dumps({"unknown": 1}))
    with pytest.raises(ProjectRefused, match="Cannot read how p ran last"):
        read_last_run(project)
