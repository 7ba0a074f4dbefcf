"""Long work as a generator: it says where others may have a turn, and what belongs on another thread.

    data = yield lambda: decompress(payload)      # Elsewhere: it lets go of the interpreter's lock.
    …
    yield                                         # A slice is done; whoever waits goes first.

The work itself knows neither threads nor event loop, so that it can be tested as it is (`run_now`).
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Steps = Generator[Callable[[], Any] | None, Any, T]


def run_now(steps: Steps[T]) -> T:
    """What comes of it, with all steps done on the spot."""
    resume, value = steps.send, None
    while True:
        try:
            step = resume(value)
        except StopIteration as end:
            result: T = end.value
            return result
        resume, value = steps.send, None
        if step is not None:
            try:
                value = step()
            except Exception as error:
                resume, value = steps.throw, error
