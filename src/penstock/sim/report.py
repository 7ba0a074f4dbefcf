"""What came out of a run, and everything that counts as a problem besides the checkers' findings."""

import gc
import logging
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.sim.clock import SimLoop
from penstock.sim.process import Killed
from penstock.sim.trace import Trace


class AnyScenario(Protocol):
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class Report:
    scenario: AnyScenario
    problems: list[str]
    steps: int
    trace: Trace

    def __str__(self) -> str:
        lines = [f"seed={self.scenario.seed} step={self.steps}", *self.problems[:20], "scenario:", str(self.scenario)]
        return "\n".join(lines)


def watch(loop: SimLoop, verdict: Coroutine[Any, Any, list[str]]) -> list[str]:
    """What the run finds, and all that went wrong in it: exceptions, logged tracebacks, failures nobody handled."""
    problems: list[str] = []
    with _logged_tracebacks(problems), _no_garbage_collection():
        try:
            problems += loop.run(verdict)
        except Exception:
            problems.append(traceback.format_exc())
    problems += (_describe(failure) for failure in loop.failures)
    return problems


@contextmanager
def _logged_tracebacks(problems: list[str]) -> Iterator[None]:
    """Errors that the broker caught and logged with a traceback are problems too."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and not isinstance(record.exc_info[1], Killed):
                problems.append(
                    f"logged: {record.getMessage()}\n{''.join(traceback.format_exception(record.exc_info[1]))}"
                )

    logger = logging.getLogger("penstock")
    collector = Collector(logging.ERROR)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(collector)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagate


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The collector runs when it likes, and what it finds may have finalisers: not in the middle of a run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _describe(failure: dict[str, object]) -> str:
    error = failure.get("exception")
    text = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
    return f"unhandled: {failure.get('message')}\n{text}"
