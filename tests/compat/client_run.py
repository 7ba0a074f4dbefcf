"""One client program at work: its jobs, and what became of each."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .client_kinds import ClientKind

RUN_S_MAX = 600  # Five codecs, produced once and consumed twice; the slowest client takes a tenth of it.


@dataclass(frozen=True)
class Job:
    verb: str
    arguments: tuple[str, ...]

    @property
    def output(self) -> Path:
        return Path(self.arguments[-1])


@dataclass
class Outcomes:
    client: str
    failures: dict[Job, str] = field(default_factory=dict)
    stderr: str = ""

    def check(self, job: Job) -> None:
        failure = self.failures.get(job)
        assert failure is None, f"{self.client}: {job.verb} {' '.join(job.arguments)}: {failure}\n{self.stderr[-3000:]}"


def run_jobs(kind: ClientKind, bootstrap: str, jobs: Sequence[Job], job_file: Path) -> Outcomes:
    job_file.write_text("".join("\t".join([job.verb, *job.arguments]) + "\n" for job in jobs))
    command = [*kind.command(), bootstrap, str(job_file)]
    stdout_path, stderr_path = job_file.with_suffix(".stdout"), job_file.with_suffix(".stderr")
    with stdout_path.open("wb") as stdout, stderr_path.open("wb") as stderr:
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **kind.env()},
                timeout=RUN_S_MAX,
                check=False,
            ).returncode
            unanswered = f"the client program exited with {ended} before it got here"
        except subprocess.TimeoutExpired:
            unanswered = f"the client program was not done after {RUN_S_MAX} s"
    answers = [line for line in stdout_path.read_text().splitlines() if line.split(" ")[0] in ("ok", "FAILED")]
    answers += [unanswered] * (len(jobs) - len(answers))
    outcomes = Outcomes(kind.name, stderr=stderr_path.read_text(errors="replace"))
    outcomes.failures = {job: answer for job, answer in zip(jobs, answers, strict=True) if answer != "ok"}
    return outcomes
