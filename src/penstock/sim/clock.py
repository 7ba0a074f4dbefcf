"""Virtual time: an event loop whose clock jumps to the next timer whenever nothing is ready to run.

Callbacks run in asyncio's own order (first in, first out; timers by time, then by age), nothing sleeps and nothing
reaches outside, so a run is a pure function of the code and the seed. Real I/O and threads raise.
"""

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from penstock.sim.process import CURRENT, Killed, Process

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WALL_START_MS = 1_700_000_000_000  # Any plausible date: record timestamps and file ages must look real.
STEPS_MAX = 200_000  # A hundred times a usual run: more is a task that spins without letting time pass.
BURIAL_STEPS_MAX = 10_000


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is set, and the main task is not done: it waits for what can never come."""


class Spinning(RuntimeError):
    """The run took more steps than any sane run: something loops without waiting, or waits in tiny steps for ever."""


class RealWorld(RuntimeError):
    """Simulated code reached for a thread, a socket or another real thing."""


class SimFuture(asyncio.Future[Any]):
    """A future that hashes by age: a set of futures is then iterated in the same order in every run."""

    def __init__(self, *, loop: "SimLoop") -> None:
        super().__init__(loop=loop)
        self._number = next(loop.numbers)
        self.process = CURRENT.get()

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    """A task that hashes by age, like SimFuture, and knows its process."""

    def __init__(
        self,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        loop: "SimLoop",
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> None:
        # Before the base class, which puts the task into a set.
        self._number = next(loop.numbers)
        if context is None:
            context = contextvars.copy_context()
        self.process = context.get(CURRENT)
        super().__init__(work, loop=loop, name=str(name) if name else f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number


class SimHandle(asyncio.Handle):
    __slots__ = ("process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(callback, args, loop, context)
        self.process = CURRENT.get() if context is None else context.get(CURRENT)


class SimTimer(asyncio.TimerHandle):
    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.process = CURRENT.get() if context is None else context.get(CURRENT)


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, *, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self.numbers = itertools.count(1)  # Futures, tasks and timers are numbered in the order of their making.
        self.steps = 0  # Callbacks run so far: names a moment of the run exactly.
        self.failures: list[dict[str, Any]] = []  # What reached the exception handler: each is a bug.
        self.graveyard: list[Process] = []
        self._now = 0.0
        self._steps_max = steps_max
        self._thread = threading.get_ident()
        self._ready: deque[SimHandle | SimTimer] = deque()
        self._timers: list[tuple[float, int, SimTimer]] = []
        self._undone: list[SimHandle | SimTimer] = []  # Steps that their process did not live to take.

    def time(self) -> float:
        return self._now

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. Afterwards the loop is closed, and every task in it ended."""
        try:
            return self.run_until_complete(work)
        finally:
            self._end()

    def tasks_of(self, process: Process | None) -> list[asyncio.Task[Any]]:
        """The unfinished tasks of one process, oldest first."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask) and task.process is process]
        return sorted(tasks, key=hash)

    def release(self, held: Iterable[SimHandle | SimTimer]) -> None:
        """Run the steps of a process that was paused."""
        self._ready.extend(held)

    # What asyncio calls.

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        return SimTask(coro, loop=self, name=name, context=context)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self.numbers), timer))
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Remember a failure that nobody handles, unless only the dead could have handled it."""
        source = context.get("handle") or context.get("task") or context.get("future")
        process: Process | None = getattr(source, "process", None)
        if (process is None or process.alive) and not isinstance(context.get("exception"), Killed):
            self.failures.append(context)

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and _is_void(timers[0][2]):
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Deadlock(f"nothing can happen any more; waiting: {self._waiting()}")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            process = handle.process
            if not _is_void(handle):
                if process is not None and process.paused:
                    process.held.append(handle)
                    continue
                self.steps += 1
                handle._run()
            elif not handle.cancelled():
                self._undone.append(handle)
        if self.steps > self._steps_max:
            raise Spinning(f"{self.steps} steps by {self._now:.3f} s; waiting: {self._waiting()}")

    def _waiting(self) -> str:
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        alive = [task for task in tasks if task.process is None or task.process.alive]
        return ", ".join(task.get_name() for task in sorted(alive, key=hash))

    def _end(self) -> None:
        failures = list(self.failures)
        self._steps_max = self.steps + BURIAL_STEPS_MAX
        leftovers = self.tasks_of(None)
        tasks = sorted((task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)), key=hash)
        for process in {task.process: None for task in tasks}:
            if process is not None:
                process.kill()
        for process in self.graveyard:
            leftovers += process.bury()
            # The loop runs the living only; what is left of a dead process must now run to its end.
            process.alive = True
        self._ready.extend(self._undone)
        for task in leftovers:
            task.cancel()
        if leftovers:
            # Code that will not end when cancelled waits for ever; the verdict of the run is not to be hidden by that.
            with contextlib.suppress(Deadlock, Spinning):
                self.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
                self.run_until_complete(self.shutdown_asyncgens())
        for process in self.graveyard:
            process.alive = False
        self.failures = failures
        for handles in (self._ready, self._timers, self._undone):
            handles.clear()
        self.close()

    # What simulated code must not use.

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise RealWorld("a thread called into the simulation")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        raise RealWorld(f"run_in_executor({func!r}): blocking work goes through FileSystem.run")

    async def create_server(self, *args: Any, **options: Any) -> NoReturn:
        raise RealWorld("create_server: listening goes through the network port")

    async def create_connection(self, *args: Any, **options: Any) -> NoReturn:
        raise RealWorld("create_connection: connecting goes through the network port")

    async def subprocess_exec(self, *args: Any, **options: Any) -> NoReturn:
        raise RealWorld("subprocess_exec")


class SimClock:
    """The Clock port on a SimLoop. `jump_ms` moves the wall clock, as an operator or a time server would."""

    def __init__(self, loop: SimLoop, start_ms: int = WALL_START_MS) -> None:
        self.jump_ms = 0
        self._loop = loop
        self._start_ms = start_ms

    def now_ms(self) -> int:
        return self._start_ms + self.jump_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


def _is_void(handle: SimHandle | SimTimer) -> bool:
    """Cancelled, or left behind by a dead process."""
    if handle.cancelled():
        return True
    process = handle.process
    return process is not None and not process.alive
