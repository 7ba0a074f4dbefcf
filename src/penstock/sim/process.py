"""A process that can die the way a power cut kills, between two steps, with no cleanup code run; or stand still.

Every task and callback that a process starts inherits its context, and the loop drops the callbacks of dead processes.
So the code under test needs to know nothing of this, and the tasks of a dead process simply never wake again.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from penstock.sim.clock import SimHandle, SimLoop, SimTimer

T = TypeVar("T")

CURRENT: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("simulated_process", default=None)


class Killed(BaseException):
    """The process is dead. Not an Exception, so that no error handling in the code under test takes it for its own."""


class Process:
    def __init__(self, loop: "SimLoop", name: str, machine: str = "") -> None:
        self.name = name
        self.machine = machine  # Which end of a link its connections are on.
        self.alive = True
        self.paused = False
        self.held: list[SimHandle | SimTimer] = []  # Steps that came up while it was paused, in order.
        self.on_death: list[Callable[[], None]] = []  # How the world outside learns of it: links break, power goes.
        self._loop = loop
        self._dead = loop.create_future()
        self._corpses: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)

    def spawn(self, work: Coroutine[Any, Any, T], name: str = "main") -> asyncio.Task[T]:
        """A task inside the process; await it with `call` from outside, because a dead task never ends."""
        return self._loop.create_task(work, name=f"{self.name}-{name}", context=self.context.copy())

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns when run inside the process; Killed when the process dies first."""
        if not self.alive:
            work.close()
            raise Killed(self.name)
        task = self.spawn(work, "call")
        await asyncio.wait([task, self._dead], return_when=asyncio.FIRST_COMPLETED)
        if not self.alive:
            raise Killed(self.name)
        return task.result()

    def pause(self) -> None:
        """Stand still, as after SIGSTOP: time goes on, the kernel takes in what comes, and nothing here runs."""
        self.paused = True

    def resume(self) -> None:
        """Go on with all that has come up meanwhile, in its order."""
        self.paused = False
        held, self.held = self.held, []
        self._loop.release(held)

    async def wait_dead(self) -> None:
        await asyncio.shield(self._dead)

    def kill(self) -> None:
        """Stop everything in the process here and now. May be called from inside it, which then must not go on."""
        if not self.alive:
            return
        self.alive = False
        self.resume()
        self._dead.set_result(None)
        # Kept until `bury`: a coroutine that is garbage collected runs its `finally` blocks, and the dead run nothing.
        self._corpses = self._loop.tasks_of(self)
        self._loop.graveyard.append(self)
        for callback in self.on_death:
            callback()

    def bury(self) -> list[asyncio.Task[Any]]:
        """Let go of the dead tasks: they are cancelled, and what they do with that no longer matters to the run."""
        corpses, self._corpses = self._corpses, []
        for task in corpses:
            task.cancel()
        return corpses
