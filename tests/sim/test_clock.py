import asyncio
import threading
import time

import pytest

from penstock.sim.clock import WALL_START_MS, Deadlock, RealWorld, SimClock, SimLoop, Spinning
from penstock.sim.process import Killed, Process


def test_an_hour_passes_at_once_and_exactly():
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert SimLoop().run(main()) == 3600
    assert time.monotonic() - started < 60


def test_timers_fire_by_time_then_by_age():
    async def main() -> list[str]:
        fired: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(2, fired.append, "late")
        loop.call_later(1, fired.append, "first")
        loop.call_later(1, fired.append, "second")
        loop.call_later(0.5, fired.append, "cancelled").cancel()
        await asyncio.sleep(3)
        return fired

    assert SimLoop().run(main()) == ["first", "second", "late"]


def test_timeouts_work():
    async def main() -> float:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        return asyncio.get_running_loop().time()

    assert SimLoop().run(main()) == 5


def test_a_wait_for_what_never_comes_is_named():
    async def main() -> None:
        asyncio.current_task().set_name("lonely")
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="lonely"):
        SimLoop().run(main())


def test_a_loop_without_end_is_stopped():
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Spinning):
        SimLoop(steps_max=1000).run(main())


def test_threads_and_sockets_raise():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RealWorld):
            await loop.run_in_executor(None, time.sleep, 1)
        with pytest.raises(RealWorld):
            await asyncio.to_thread(time.sleep, 1)
        with pytest.raises(RealWorld):
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        with pytest.raises(RealWorld):
            await asyncio.open_connection("127.0.0.1", 1)
        caught: list[BaseException] = []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RealWorld as error:
                caught.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert caught

    SimLoop().run(main())


def test_sets_of_tasks_iterate_in_the_same_order_in_every_run():
    def order() -> list[str]:
        async def main() -> list[str]:
            tasks = {asyncio.create_task(asyncio.sleep(1), name=str(n)) for n in range(50)}
            done, _ = await asyncio.wait(tasks)
            return [task.get_name() for task in done]

        return SimLoop().run(main())

    first = order()
    kept = [object() for _ in range(1000)]  # Moves the addresses of everything made from here on.
    assert order() == first
    del kept


def test_clock_follows_the_loop_and_the_wall_clock_can_jump():
    loop = SimLoop()
    clock = SimClock(loop)

    async def main() -> None:
        await asyncio.sleep(1.5)
        assert (clock.now_ms(), clock.monotonic()) == (WALL_START_MS + 1500, 1.5)
        clock.jump_ms = -1000
        assert (clock.now_ms(), clock.monotonic()) == (WALL_START_MS + 500, 1.5)

    loop.run(main())


def test_a_killed_process_runs_nothing_more_not_even_cleanup():
    loop = SimLoop()
    ticks: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_later(5, ticks.append, "timer")
        try:
            while True:
                await asyncio.sleep(1)
                ticks.append("tick")
        finally:
            ticks.append("cleanup")

    async def main() -> list[str]:
        process = Process(loop, "victim")
        process.spawn(work())
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10)
        return list(ticks)

    assert loop.run(main()) == ["tick", "tick"]
    assert not loop.failures


def test_a_call_into_a_process_ends_when_the_process_does():
    loop = SimLoop()

    async def main() -> None:
        process = Process(loop, "victim")
        assert await process.call(asyncio.sleep(1, "fine")) == "fine"
        loop.call_later(1, process.kill)
        with pytest.raises(Killed):
            await process.call(asyncio.sleep(10))
        await process.wait_dead()
        with pytest.raises(Killed):
            await process.call(asyncio.sleep(10))

    loop.run(main())


def test_failures_of_the_living_are_kept_and_those_of_the_dead_are_not():
    loop = SimLoop()

    def fail() -> None:
        raise ValueError("nobody handles this")

    async def main() -> None:
        process = Process(loop, "victim")
        process.context.run(loop.call_later, 1, fail)
        process.context.run(loop.call_later, 3, fail)
        await asyncio.sleep(2)
        process.kill()
        await asyncio.sleep(2)

    loop.run(main())
    assert [str(failure["exception"]) for failure in loop.failures] == ["nobody handles this"]


def test_a_paused_process_does_later_what_came_up_meanwhile():
    loop = SimLoop()
    done: list[tuple[str, float]] = []

    async def work() -> None:
        for number in range(3):
            await asyncio.sleep(1)
            done.append((f"step {number}", loop.time()))

    async def main() -> None:
        process = Process(loop, "broker")
        process.spawn(work())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(4)
        assert done == [("step 0", 1.0)]
        process.resume()
        await asyncio.sleep(4)

    loop.run(main())
    assert done == [("step 0", 1.0), ("step 1", 5.5), ("step 2", 6.5)]


def test_a_process_that_is_killed_while_paused_does_nothing_more():
    loop = SimLoop()
    done: list[str] = []

    async def main() -> None:
        process = Process(loop, "broker")
        process.context.run(loop.call_later, 1, done.append, "timer")
        process.pause()
        await asyncio.sleep(2)
        process.kill()
        await asyncio.sleep(1)

    loop.run(main())
    assert not done
