"""The simulated metadata store when it is not well; when it is, the conformance suite of all stores holds it."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from penstock.cluster.store.base import Change, CommitUnknown, Compacted, LeaseLost, Put, StoreUnavailable
from penstock.sim.clock import SimClock, SimLoop
from penstock.sim.ensemble import EXPIRY_MAX, EXPIRY_MIN, STORE, Ensemble
from penstock.sim.network import SimNetwork
from penstock.sim.process import Process
from penstock.sim.store import SimStore

TIMEOUT_S = 3.0


class Bench:
    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.network = SimNetwork(loop=loop, random=Random(1))
        self.ensemble = Ensemble(network=self.network, random=Random(seed))

    async def open(self, machine: str) -> tuple[Process, SimStore]:
        """A client in a process of its own."""
        process = Process(self.loop, machine, machine)
        store = process.context.run(
            lambda: SimStore(
                ensemble=self.ensemble, timeout_s=TIMEOUT_S, clock=SimClock(self.loop), random=Random(machine)
            )
        )
        await process.call(store.start())
        return process, store

    def cut(self, *links: tuple[str, str]) -> None:
        for link in links:
            self.network.cut_link(link)

    def heal(self, *links: tuple[str, str]) -> None:
        for link in links:
            self.network.heal_link(link)


def play(scene: Callable[[Bench], Awaitable[None]], seed: int = 0) -> None:
    loop = SimLoop()

    async def main() -> None:
        bench = Bench(loop, seed)
        publishing = asyncio.create_task(bench.ensemble.publish())
        await scene(bench)
        publishing.cancel()

    loop.run(main())
    assert not loop.failures


AWAY, BACK = ("one", STORE), (STORE, "one")


@pytest.mark.parametrize("links", [(AWAY, BACK), (AWAY,)])
def test_who_is_not_heard_of_loses_its_keys_after_it_has_stopped_acting(links: tuple[tuple[str, str], ...]) -> None:
    async def scene(bench: Bench) -> None:
        one, store = await bench.open("one")
        _, other = await bench.open("two")
        lease = await one.call(store.open_lease("broker-1"))
        await one.call(store.commit([], [Put("/a", b"", lease.id)]))
        await asyncio.sleep(10)
        now = bench.loop.time()
        assert lease.may_act_until > now, "heartbeats keep it"
        bench.cut(*links)
        until = lease.may_act_until
        commit = await anext(other.watch((await other.list("/")).revision))
        assert commit.changes == (Change("/a", None),)
        assert now + EXPIRY_MIN * TIMEOUT_S - TIMEOUT_S / 6 < bench.loop.time() < now + EXPIRY_MAX * TIMEOUT_S + 0.1
        assert lease.may_act_until <= until < bench.loop.time()
        assert not lease.is_lost, "nobody could tell it"
        bench.heal(*links)
        await asyncio.wait_for(one.call(lease.lost()), TIMEOUT_S)
        with pytest.raises(LeaseLost):
            await one.call(store.commit([], [Put("/a", b"", lease.id)]))

    play(scene)


def test_a_session_outlives_a_short_cut() -> None:
    async def scene(bench: Bench) -> None:
        one, store = await bench.open("one")
        lease = await one.call(store.open_lease("broker-1"))
        bench.cut(AWAY, BACK)
        await asyncio.sleep(TIMEOUT_S / 3)
        bench.heal(AWAY, BACK)
        await asyncio.sleep(TIMEOUT_S)
        assert lease.may_act_until > bench.loop.time()

    play(scene)


@pytest.mark.parametrize(("links", "is_done"), [((BACK,), True), ((AWAY,), False)])
def test_a_commit_that_is_not_answered_is_unknown(links: tuple[tuple[str, str], ...], is_done: bool) -> None:
    async def scene(bench: Bench) -> None:
        one, store = await bench.open("one")
        _, other = await bench.open("two")
        bench.cut(*links)
        with pytest.raises(CommitUnknown):
            await one.call(store.commit([], [Put("/a", b"")]))
        with pytest.raises(StoreUnavailable) as unavailable:
            await one.call(store.commit([], [Put("/b", b"")]))
        assert not isinstance(unavailable.value, CommitUnknown), "it was not sent"
        bench.heal(*links)
        await asyncio.sleep(2)
        assert (await other.get("/a") is not None) is is_done
        assert await other.get("/b") is None

    play(scene)


def test_who_comes_back_is_told_what_it_has_missed_or_that_it_is_too_much() -> None:
    seen = set()

    async def scene(bench: Bench, machine: str) -> None:
        one, store = await bench.open(machine)
        _, other = await bench.open("two")
        start = (await one.call(store.list("/"))).revision
        links = ((machine, STORE), (STORE, machine))
        bench.cut(*links)
        await asyncio.sleep(TIMEOUT_S)  # Longer than a silent connection is kept.
        for value in (b"1", b"2", b"3"):
            await other.commit([], [Put("/a", value)])
        bench.heal(*links)
        feed = store.watch(start)
        values = []
        try:
            while values[-1:] != [b"3"]:
                commit = await one.call(anext(feed))
                values += [change.entry.value for change in commit.changes if change.entry is not None]
        except Compacted:
            values = [entry.value for entry in (await one.call(store.list("/a"))).entries]
            seen.add("compacted")
        else:
            seen.add("merged" if len(values) == 1 else "each")
        assert values in ([b"1", b"2", b"3"], [b"3"])

    for number in range(30):
        play(lambda bench, number=number: scene(bench, f"machine{number}"), number)
    assert seen == {"each", "merged", "compacted"}


def test_no_session_ends_while_the_store_is_down() -> None:
    async def scene(bench: Bench) -> None:
        one, store = await bench.open("one")
        lease = await one.call(store.open_lease("broker-1"))
        await one.call(store.commit([], [Put("/a", b"", lease.id)]))
        bench.ensemble.go_down()
        await asyncio.sleep(5 * TIMEOUT_S)
        assert lease.may_act_until < bench.loop.time()
        with pytest.raises(StoreUnavailable):
            await one.call(store.get("/a"))
        bench.ensemble.come_back()
        assert await one.call(store.get("/a")) is not None
        await asyncio.sleep(TIMEOUT_S)
        assert lease.may_act_until > bench.loop.time()

    play(scene)


def test_a_client_that_stands_still_learns_late_that_its_session_is_over() -> None:
    async def scene(bench: Bench) -> None:
        one, store = await bench.open("one")
        _, other = await bench.open("two")
        lease = await one.call(store.open_lease("broker-1"))
        await one.call(store.commit([], [Put("/a", b"", lease.id)]))
        one.pause()
        await asyncio.sleep(2 * TIMEOUT_S)
        assert await other.get("/a") is None
        assert not lease.is_lost
        assert lease.may_act_until < bench.loop.time()
        one.resume()
        await asyncio.wait_for(one.call(lease.lost()), TIMEOUT_S)

    play(scene)


def test_the_keys_of_a_dead_process_go_with_its_session() -> None:
    async def scene(bench: Bench) -> None:
        one, store = await bench.open("one")
        _, other = await bench.open("two")
        lease = await one.call(store.open_lease("broker-1"))
        await one.call(store.commit([], [Put("/a", b"", lease.id)]))
        one.kill()
        assert await other.get("/a") is not None
        await asyncio.sleep(2 * TIMEOUT_S)
        assert await other.get("/a") is None

    play(scene)
