"""Templates become projects; every one that is shipped does."""

import json

import pytest

from penstock.pipeline.project import ProjectRefused
from penstock.pipeline.template import (
    load_template,
    make_project,
    read_template,
    template_names,
    values_of,
)


@pytest.fixture
def template(tmp_path):
    folder = tmp_path / "templates" / "copy"
    (folder / "transformations").mkdir(parents=True)
    (folder / "transformations" / "copy.py").write_text("print('{topic}')\n")
    (folder / "template.toml").write_text(
        """
        summary = "Copy."
        [parameters.topic]
        help = "Topic to read."
        [parameters.target]
        help = "Topic to write."
        default = "{topic}-copy"
        [configuration]
        "spark.sql.shuffle.partitions" = "3"
        """
    )
    return read_template(folder)


def settings(folder):
    """The lines `key: value` of the project's file, whose values are JSON."""
    lines = (folder / "spark-pipeline.yml").read_text().splitlines()
    pairs = (line.strip().partition(": ") for line in lines if not line.strip().startswith("#"))
    return {key: json.loads(value) for key, _, value in pairs if value.startswith('"')}


def test_a_project_has_the_templates_files_and_its_parameters_in_one_place(template, tmp_path):
    folder = tmp_path / "orders copy.d" / "my-copy"
    make_project(folder, template, {"topic": 'a"b'}, "broker:9092")
    assert settings(folder) == {
        "name": "my-copy",
        "storage": (folder / "storage").as_uri(),
        "penstock.bootstrap.servers": "broker:9092",
        "penstock.topic": 'a"b',
        "penstock.target": 'a"b-copy',
        "spark.sql.shuffle.partitions": "3",
    }
    assert (folder / "transformations" / "copy.py").read_text() == "print('{topic}')\n"
    assert not (folder / "template.toml").exists()


def test_what_is_given_comes_before_the_default(template):
    assert values_of(template, {"target": "b", "topic": "a"}) == {"topic": "a", "target": "b"}


@pytest.mark.parametrize(
    ("name", "given", "message", "hint"),
    [
        ("p", {}, "needs a value for 'topic': Topic to read", "--topic NAME"),
        ("p", {"topic": "a", "targt": "b"}, "no parameter 'targt'", "target, topic"),
        ("a b", {"topic": "a"}, "'a b' cannot be the name", "letters"),
        ("templates", {"topic": "a"}, "is there already", "another name"),
    ],
)
def test_what_is_refused_makes_no_folder(template, tmp_path, name, given, message, hint):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProjectRefused, match=message) as refused:
        make_project(tmp_path / name, template, given, "broker:9092")
    assert hint in refused.value.hint
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_said(template, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ProjectRefused, match="Cannot make"):
        make_project(tmp_path / "file" / "p", template, {"topic": "a"}, "broker:9092")


def test_there_is_no_such_template():
    with pytest.raises(ProjectRefused, match="no template 'dedup'") as refused:
        load_template("dedup")
    assert "dedupe" in refused.value.hint


@pytest.mark.parametrize("name", template_names())
def test_every_template_makes_a_project(name, tmp_path):
    template = load_template(name)
    assert template.summary.endswith(".")
    assert all(parameter.help.endswith(".") for parameter in template.parameters)
    needed = {parameter.name: "orders" for parameter in template.parameters if parameter.default is None}
    make_project(tmp_path / name, template, needed, "broker:9092")
    programs = list((tmp_path / name / "transformations").glob("*.py"))
    assert programs
    texts = [program.read_text() for program in programs]
    for program, text in zip(programs, texts, strict=True):
        compile(text, program, "exec")
    for parameter in template.parameters:
        assert any(f'"penstock.{parameter.name}"' in text for text in texts), f"nobody reads {parameter.name}"
