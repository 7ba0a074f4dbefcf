"""Templates of pipelines: a folder under `templates/` with `template.toml` and the files of a project.

The files are copied as they are. All that differs from project to project is in `spark-pipeline.yml`, which is made
here: a template's parameters are its `configuration`, and transformations read them with
`spark.conf.get("penstock.NAME")`. So whoever wants to change one later has one file to edit.

    summary = "Drop repeated keys within a time window."

    [parameters.topic]
    help = "Topic to read."                 # no default: it must be given

    [parameters.target]
    help = "Topic to write."
    default = "{topic}-unique"              # may name parameters above it

    [configuration]                         # settings of Spark that the template needs, not often
    "spark.sql.shuffle.partitions" = "8"
"""

import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.pipeline.project import BOOTSTRAP_KEY, SPEC_NAMES, ProjectRefused

PREFIX = "penstock."

_HOME = Path(__file__).parent / "templates"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Parameter:
    name: str
    help: str
    default: str | None  # None: it must be given. May have {other} parameters in it, which come before.


@dataclass(frozen=True)
class Template:
    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    configuration: Mapping[str, str]  # Of Spark.
    folder: Path


def template_names() -> list[str]:
    return sorted(found.parent.name for found in _HOME.glob("*/template.toml"))


def load_template(name: str) -> Template:
    """ProjectRefused when there is none of that name."""
    names = template_names()
    if name not in names:
        raise ProjectRefused(f"There is no template '{name}'.", f"There are: {', '.join(names)}.")
    return read_template(_HOME / name)


def read_template(folder: Path) -> Template:
    about = tomllib.loads((folder / "template.toml").read_text())
    parameters = tuple(Parameter(name, each["help"], each.get("default")) for name, each in about["parameters"].items())
    return Template(folder.name, about["summary"], parameters, about.get("configuration", {}), folder)


def values_of(template: Template, given: Mapping[str, str]) -> dict[str, str]:
    """A value for every parameter; ProjectRefused when one is missing or unknown."""
    known = {parameter.name for parameter in template.parameters}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ProjectRefused(
            f"Template '{template.name}' has no parameter '{unknown[0]}'.", f"It has: {', '.join(sorted(known))}."
        )
    values: dict[str, str] = {}
    for parameter in template.parameters:
        if parameter.name in given:
            values[parameter.name] = given[parameter.name]
        elif parameter.default is not None:
            values[parameter.name] = parameter.default.format(**values)
        else:
            option = "--topic NAME" if parameter.name == "topic" else f"--set {parameter.name}=VALUE"
            raise ProjectRefused(
                f"Template '{template.name}' needs a value for '{parameter.name}': {parameter.help}", f"Give {option}."
            )
    return values


def make_project(folder: Path, template: Template, given: Mapping[str, str], bootstrap_servers: str) -> None:
    """A new project in `folder`, which must not exist; ProjectRefused says why there is none."""
    if not _NAME.fullmatch(folder.name):
        raise ProjectRefused(
            f"'{folder.name}' cannot be the name of a pipeline.", "Use letters, digits, '.', '_' and '-'."
        )
    values = values_of(template, given)
    if folder.exists():
        raise ProjectRefused(f"{folder} is there already.", "Give another name, or remove it first.")
    try:
        shutil.copytree(template.folder, folder, ignore=shutil.ignore_patterns("template.toml", "__pycache__"))
        (folder / SPEC_NAMES[0]).write_text(spec_text(folder.resolve(), template, values, bootstrap_servers))
    except OSError as error:
        raise ProjectRefused(f"Cannot make {folder}: {(error.strerror or str(error)).lower()}.") from error


def spec_text(folder: Path, template: Template, values: Mapping[str, str], bootstrap_servers: str) -> str:
    lines = [
        f"# A pipeline of Spark, from Penstock's template '{template.name}': {template.summary}",
        f"# Run it with `penstock pipeline run {folder.name}`; `spark-pipelines run` works as well.",
        "",
        f"name: {_quoted(folder.name)}",
        "# Checkpoints: what was read and written so far. Keep it; move it only together with the data.",
        f"storage: {_quoted((folder / 'storage').as_uri())}",
        "libraries:",
        "  - glob:",
        "      include: transformations/**",
        "configuration:",
        *_setting("Where the brokers are; `--bootstrap-server` overrides it.", BOOTSTRAP_KEY, bootstrap_servers),
    ]
    for parameter in template.parameters:
        lines += _setting(parameter.help, PREFIX + parameter.name, values[parameter.name])
    lines += [f"  {key}: {_quoted(value)}" for key, value in template.configuration.items()]
    return "\n".join(lines) + "\n"


def _setting(help: str, key: str, value: str) -> list[str]:
    return [f"  # {help}", f"  {key}: {_quoted(value)}"]


def _quoted(value: Any) -> str:
    """A JSON string is a YAML string, whatever is in it."""
    return json.dumps(value)
