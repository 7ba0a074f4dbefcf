"""Work on single records, for the few requests that cannot do without: one piece at a time for the whole broker.

It takes up to a second for a batch that is made for it. Steps run on the event loop between other requests, and what
lets go of the interpreter's lock on a thread. One at a time: a thousand such requests take a thousand times as long,
not a thousand times the memory, and everybody else waits for one slice.
"""

import asyncio
from typing import TypeVar

from penstock.base.steps import Steps
from penstock.storage.fs import FileSystem

T = TypeVar("T")


class RecordWork:
    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._turn = asyncio.Lock()

    async def run(self, steps: Steps[T]) -> T:
        """What comes of the work."""
        async with self._turn:
            return await self._run(steps)

    async def _run(self, steps: Steps[T]) -> T:
        resume, value = steps.send, None
        try:
            while True:
                step = resume(value)
                resume, value = steps.send, None
                try:
                    value = await (asyncio.sleep(0) if step is None else self._fs.run(step))
                except Exception as error:
                    resume, value = steps.throw, error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            del value  # An error that holds this frame, and is held by it, would keep 100 MiB until it is collected.
