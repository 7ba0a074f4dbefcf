"""A pipeline's project on disk: its folder, what its file says, and what we note beside it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")  # As Spark looks for them.
BOOTSTRAP_KEY = "penstock.bootstrap.servers"
NOTES = ".penstock"  # Ours: the log of the last run, and how it ended.

DEPTH_MAX = 4  # Of folders in which `list` looks: it may be asked to look through somebody's home.


class ProjectRefused(Exception):
    """There is no such project, or it cannot be made or run so; `hint` says what to do."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class PartsMissing(ProjectRefused):
    """The packages for Spark are not installed."""

    def __init__(self, error: ImportError) -> None:
        super().__init__(f"Pipelines need Spark ({error}).", 'Install it: pip install "penstock[spark]"')


@dataclass(frozen=True)
class Project:
    folder: Path
    spec_path: Path
    name: str
    storage: str  # A URI, under which the checkpoints are.
    configuration: Mapping[str, str]

    @property
    def bootstrap_servers(self) -> str | None:
        return self.configuration.get(BOOTSTRAP_KEY)

    @property
    def notes(self) -> Path:
        return self.folder / NOTES

    @property
    def storage_folder(self) -> Path | None:
        """None when it is not on this machine's file system."""
        found = urlsplit(self.storage)
        return Path(unquote(found.path)) if found.scheme == "file" else None


def open_project(path: Path) -> Project:
    """The project in a folder, or that of its file; ProjectRefused when there is none, or it makes no sense."""
    spec_path = path if path.is_file() else _spec_path(path)
    if spec_path is None:
        raise ProjectRefused(
            f"There is no pipeline in {path}: it has no {SPEC_NAMES[0]}.",
            "Make one: penstock pipeline init PROJECT --template NAME. See which there are: penstock pipeline list",
        )
    try:
        import yaml
    except ImportError as error:
        raise PartsMissing(error) from error
    try:
        spec = yaml.safe_load(spec_path.read_text())
        return _read(spec_path, spec)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ProjectRefused(f"Cannot read {spec_path}: {error}", "See docs/pipelines.md for its form.") from error


def _read(spec_path: Path, spec: Any) -> Project:
    if not isinstance(spec, dict):
        raise ValueError("it has no settings")
    for key in ("name", "storage"):
        if not isinstance(spec.get(key), str):
            raise ValueError(f"'{key}' is missing, or is no text")
    configuration = spec.get("configuration") or {}
    for key, value in configuration.items():
        if not isinstance(value, str):
            raise ValueError(f"configuration '{key}' is {value!r}: put it in quotes")
    folder = spec_path.parent.resolve()
    return Project(folder, folder / spec_path.name, spec["name"], spec["storage"], configuration)


def find_projects(folder: Path) -> Iterator[Path]:
    """Folders with a project in them, in order of their names; one inside another is not looked for."""
    below = len(folder.parts)
    for place, names, _ in os.walk(folder):
        path = Path(place)
        if _spec_path(path) is not None:
            yield path
            names.clear()
            continue
        deep = len(path.parts) - below >= DEPTH_MAX
        names[:] = [] if deep else sorted(name for name in names if not name.startswith("."))


def _spec_path(folder: Path) -> Path | None:
    return next((folder / name for name in SPEC_NAMES if (folder / name).is_file()), None)
