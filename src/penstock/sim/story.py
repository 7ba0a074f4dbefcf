"""What the stories of a simulation have in common: something that clients do, and what must be true of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from penstock.base.clock import Clock
from penstock.base.types import TopicPartition
from penstock.sim.client import FetchReply, LinkLost, SimClient
from penstock.sim.trace import Trace
from penstock.sim.workload import RECONNECT_SECONDS, Links, create_topic

R = TypeVar("R")

POLLS_MAX = 500  # Of one reading from start to end: the logs of a run have a few dozen batches.


class Story(Protocol):
    name: str
    complaints: list[str]

    async def prepare(self) -> None:
        """Make what it needs."""

    async def act(self) -> None:
        """Do it, while the broker dies and comes back."""

    async def check(self) -> None:
        """Look at what is left; the broker is up and stays up."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a story plays on."""

    links: Links
    clock: Clock
    trace: Trace
    random: Random
    topic_config: dict[str, str]
    steps: int
    think_s: float

    async def think(self) -> None:
        await asyncio.sleep(self.think_s * self.random.random())

    async def create_topic(self, name: str, **config: str) -> None:
        """Of one partition. Names of settings with underscores."""
        settings = {**self.topic_config, **{key.replace("_", "."): value for key, value in config.items()}}
        code = await create_topic(self.links, name, 1, settings)
        assert code == 0, f"creating {name}: {code.name}"


class Line:
    """A connection that is made again when it breaks."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._client: SimClient | None = None

    async def client(self) -> SimClient:
        if self._client is None or self._client.lost:
            self._client = await self._links.connect()
        return self._client

    async def ask(self, request: Callable[[SimClient], Awaitable[R]]) -> R | None:
        """The reply. None: it was lost, and nobody knows what became of the request."""
        try:
            return await request(await self.client())
        except LinkLost:
            self._client = None
            await asyncio.sleep(RECONNECT_SECONDS)
            return None

    async def read_all(self, partition: TopicPartition, start: int) -> list[FetchReply] | None:
        """Replies from `start` to the high watermark of the first of them; None: the link broke meanwhile."""
        replies: list[FetchReply] = []
        for _ in range(POLLS_MAX):
            position = replies[-1].next_offset if replies else start
            reply = await self.ask(lambda client, at=position: client.fetch(partition, at))  # type: ignore[misc]
            if reply is None:
                return None
            replies.append(reply)
            if reply.error != 0 or reply.next_offset >= replies[0].high_watermark:
                return replies
        raise AssertionError(f"{partition} cannot be read to its end: {replies[-1]}")
