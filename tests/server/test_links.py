"""Connections to other brokers that are kept: one to each, made anew when it is lost."""

import asyncio

import pytest

from penstock.partition.peers import PeerLost
from penstock.server.links import Links
from penstock.wire.codec import Buffer, Struct

ASK_S = 60.0


class FakePeer:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.is_lost = False

    async def ask(self, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        if self.is_lost:
            raise PeerLost("lost")
        return Struct(node_id=self.node_id, peer=self)

    async def ask_raw(self, api_key: int, version: int, body: Buffer | list[Buffer], timeout_s: float) -> memoryview:
        raise AssertionError("not asked for")

    def close(self) -> None:
        self.is_lost = True


class FakePeers:
    def __init__(self) -> None:
        self.made: list[FakePeer] = []
        self.may_connect = asyncio.Event()

    async def connect(self, node_id: int) -> FakePeer:
        await self.may_connect.wait()
        self.made.append(FakePeer(node_id))
        return self.made[-1]


async def asked(links: Links, node_id: int, timeout_s: float = ASK_S) -> Struct:
    return await links.ask(node_id, 18, 0, Struct(), timeout_s)


def test_all_who_ask_a_broker_share_one_connection_until_it_is_lost() -> None:
    async def scenario() -> None:
        peers = FakePeers()
        links = Links(peers)
        asking = [asyncio.create_task(asked(links, 1 + number % 2)) for number in range(6)]
        await asyncio.sleep(0)
        peers.may_connect.set()
        answers = await asyncio.gather(*asking)
        assert [answer.node_id for answer in answers] == [1, 2, 1, 2, 1, 2]
        assert len(peers.made) == 2
        peers.made[0].is_lost = True
        assert (await asked(links, 1)).peer is peers.made[2]

    asyncio.run(scenario())


def test_a_broker_that_cannot_be_reached_in_time_is_lost() -> None:
    async def scenario() -> None:
        with pytest.raises(PeerLost, match="no connection to broker 1"):
            await asked(Links(FakePeers()), 1, timeout_s=0.01)

    asyncio.run(scenario())


def test_only_the_links_that_are_kept_stay_open() -> None:
    async def scenario() -> None:
        peers = FakePeers()
        peers.may_connect.set()
        links = Links(peers)
        one, two = (await asked(links, 1)).peer, (await asked(links, 2)).peer
        links.keep(frozenset({2}))
        assert (one.is_lost, two.is_lost) == (True, False)
        peers.may_connect.clear()
        late = asyncio.create_task(asked(links, 3))
        await asyncio.sleep(0)
        links.keep(frozenset({2}))
        peers.may_connect.set()
        with pytest.raises(PeerLost):
            await late
        assert peers.made[-1].is_lost

    asyncio.run(scenario())
