"""What happened in a run, in order: two runs of one seed must leave the same trace."""

import hashlib

from penstock.sim.clock import SimLoop


class Trace:
    def __init__(self, loop: SimLoop) -> None:
        self.events: list[tuple[object, ...]] = []
        self._loop = loop

    def add(self, *fields: object) -> None:
        """Note an event with its place in the run. Fields must print the same in every run: no addresses, no sets."""
        self.events.append((self._loop.steps, self._loop.time(), *fields))

    def digest(self) -> str:
        text = "\n".join(map(repr, self.events))
        return hashlib.sha256(text.encode()).hexdigest()
