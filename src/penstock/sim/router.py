"""A client's way to a cluster: who leads what, one connection to each broker, and what to do when one is silent.

Like Kafka's clients it never goes back to an older leader epoch, whatever a broker that is behind may say.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from random import Random
from typing import NamedTuple, TypeVar

from kio.schema.metadata.v12.response import MetadataResponse

from penstock.base.types import TopicPartition
from penstock.sim.client import LinkLost, NoReply, SimClient
from penstock.sim.network import SimNetwork

R = TypeVar("R")

FIRST_PORT = 9092  # Broker 1 has the next, and so on.
CONNECT_S = 1.0
REQUEST_S = 3.0  # Most leaders have by then given up a follower that they waited for.


class Leader(NamedTuple):
    broker: int
    epoch: int


class Router:
    def __init__(self, network: SimNetwork, brokers: Iterable[int], random: Random, numbers: Iterator[int]) -> None:
        """`numbers` tells the connections of all routers apart."""
        self.brokers = list(brokers)
        self._network = network
        self._random = random
        self._numbers = numbers
        self._clients: dict[int, SimClient] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._is_sure = False

    async def client(self, broker: int) -> SimClient | None:
        """A connection to the broker; None when there is none to be had now."""
        client = self._clients.get(broker)
        if client is None or client.lost:
            try:
                client = await asyncio.wait_for(SimClient.connect(self._network, FIRST_PORT + broker), CONNECT_S)
            except (ConnectionError, TimeoutError):
                return None
            client.number = next(self._numbers)
            self._clients[broker] = client
        return client

    async def ask(self, request: Callable[[SimClient], Awaitable[R]], broker: int | None = None) -> R | None:
        """What the broker answers, or any of them; None when it does not."""
        client = await self.client(broker if broker is not None else self._random.choice(self.brokers))
        if client is None:
            return None
        try:
            return await request(client)
        except LinkLost:
            return None
        except NoReply:
            client.abort()
            return None

    async def leader(self, partition: TopicPartition) -> tuple[Leader, SimClient] | None:
        """The leader as far as we know, and a connection to it; None when that cannot be had now."""
        if not self._is_sure:
            await self.refresh()
        leader = self._leaders.get(partition)
        if leader is None or leader.broker < 0:
            self._is_sure = False
            return None
        client = await self.client(leader.broker)
        if client is None:
            self._is_sure = False
            return None
        return leader, client

    def doubt(self) -> None:
        """Ask who leads before the next use: whoever we took for a leader is none, or does not answer."""
        self._is_sure = False

    async def refresh(self) -> MetadataResponse | None:
        """Ask some broker who leads what; gives its reply."""
        reply = await self.ask(lambda client: client.metadata(within_s=REQUEST_S))
        if reply is not None:
            self._is_sure = True
            for topic in reply.topics:
                for state in topic.partitions:
                    partition = TopicPartition(str(topic.name), state.partition_index)
                    leader = Leader(state.leader_id, state.leader_epoch)
                    if leader.epoch >= self._leaders.get(partition, leader).epoch:
                        self._leaders[partition] = leader
        return reply

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
