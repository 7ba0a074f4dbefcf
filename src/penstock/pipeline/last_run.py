"""How the last run of a project went: one small file beside it, replaced as a whole. Only one run at a time."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.pipeline.project import Project, ProjectRefused

RUNNING, COMPLETED, FAILED, STOPPED, DIED = "running", "completed", "failed", "stopped", "died"


@dataclass
class LastRun:
    started_ms: int
    ended_ms: int | None = None
    outcome: str = RUNNING
    updates_count: int = 0  # With --every there are many.
    error: str = ""
    flows: list[dict[str, Any]] = field(default_factory=list)  # As `--json` shows them.


def write_last_run(project: Project, run: LastRun) -> None:
    place = project.notes / "last-run.json"
    made = place.with_suffix(f".{os.getpid()}")
    made.write_text(json.dumps(asdict(run), indent=2))
    made.rename(place)


def read_last_run(project: Project) -> LastRun | None:
    """None when there was none. One that is noted as running, and is not, has died."""
    try:
        run = LastRun(**json.loads((project.notes / "last-run.json").read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ProjectRefused(
            f"Cannot read how {project.name} ran last: {error}.", f"Remove {project.notes / 'last-run.json'}."
        ) from error
    if run.outcome == RUNNING and not _is_locked(project.notes / "lock"):
        run.outcome = DIED
    return run


@contextmanager
def only_run(project: Project) -> Iterator[None]:
    """ProjectRefused when the project is running already: two would share their checkpoints."""
    try:
        project.notes.mkdir(exist_ok=True)
        lock = (project.notes / "lock").open("w")
    except OSError as error:
        raise ProjectRefused(
            f"Cannot write into {project.folder}: {(error.strerror or str(error)).lower()}.",
            "A run notes there how it went.",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ProjectRefused(
                f"{project.name} is running already.", "Stop that run first; two would share their checkpoints."
            ) from error
        yield


def _is_locked(path: Path) -> bool:
    try:
        with path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
