"""R25 on a real broker: killed while its members join and sync; and fifty members that come, go, die and sleep.

A member that is stopped with SIGSTOP and commits when it wakes is in tests/compat, with real clients.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from . import figures
from .broker_process import BrokerProcess
from .group_world import CONFIG, GroupWorld

MEMBERS = 50
SESSION_S = 3.0
CHURN_S = 12.0
ZOMBIES_MIN = 3  # Fewer, and the test has not tested anything: it goes on for so long to have them.
CHURN_S_MORE = 60.0


@pytest.mark.parametrize("request_name", ["join", "sync"])
def test_the_broker_is_killed_while_members_join_and_sync(
    new_broker: Callable[..., BrokerProcess], request_name: str
) -> None:
    broker = new_broker(config=CONFIG)
    broker.start()

    async def story() -> None:
        world = GroupWorld(broker, partitions=8, session_s=2.0)
        await world.prepare()
        producing = asyncio.create_task(world.produce(0.02))
        for number in range(5):
            world.crowd.start(f"static-{number}" if number % 2 else None)
        await world.settle()
        for number in range(1, 4):
            await kill_at(world, request_name, number)
        producing.cancel()
        with suppress(asyncio.CancelledError):
            await producing
        await world.settle()
        await world.finish()

    async def kill_at(world: GroupWorld, name: str, number: int) -> None:
        """Kill the broker with the `number`th of these requests under way, and start it again."""
        struck = asyncio.Event()
        asked = 0

        def on_asked(what: str) -> None:
            nonlocal asked
            asked += what == name
            if asked == number and not struck.is_set():
                struck.set()
                # Sent is not received: a little later it is with the broker, and perhaps in its log.
                asyncio.get_running_loop().call_later(0.002 * number, broker.kill)

        world.on_asked = on_asked
        world.crowd.start()  # Makes all of them join again.
        await asyncio.wait_for(struck.wait(), 60)
        await asyncio.sleep(0.1)
        world.on_asked = lambda what: None
        await world.restart()

    asyncio.run(story())
    broker.stop()


def test_fifty_members_churn(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(config=CONFIG)
    broker.start()
    random = Random(25)

    async def story() -> None:
        world = GroupWorld(broker, partitions=64, session_s=SESSION_S)
        await world.prepare()
        producing = asyncio.create_task(world.produce(0.01))
        for number in range(MEMBERS):
            world.crowd.start(f"static-{number}" if number % 5 == 0 else None)
        figures.note("groups: 50 members start, stable after", f"{await world.settle():.1f} s")
        end = asyncio.get_running_loop().time() + CHURN_S
        while (left_s := end - asyncio.get_running_loop().time()) > 0 or len(world.refused_zombies()) < ZOMBIES_MIN:
            assert left_s > -CHURN_S_MORE, "hardly anyone committed as a zombie"
            await asyncio.sleep(random.random())
            churn(world)
        await asyncio.sleep(2 * SESSION_S)  # The last sleepers wake.
        producing.cancel()
        with suppress(asyncio.CancelledError):
            await producing
        figures.note("groups: 50 members after churn, stable after", f"{await world.settle():.1f} s")
        await world.finish()

    def churn(world: GroupWorld) -> None:
        world.crowd.reap()
        seat = random.choice(world.crowd.seats)
        deed = random.choice(("pause", "pause", "pause", "crash", "vanish", "leave", "restart"))
        if deed == "pause":
            seat.member.pause(SESSION_S * random.choice((0.5, 1.9)))
        elif deed == "leave":
            seat.member.is_leaving = True
        else:
            world.crowd.kill(seat, silently=deed == "vanish")
        if deed != "pause":
            world.crowd.start(seat.member.instance_id if deed == "restart" else None)

    asyncio.run(story())
    broker.stop()
