"""The timer wheel: never early, cancelled for good, one loop timer for all."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.timers import SWEPT_SLOTS_MIN, TICK_S, TimerWheel
from penstock.sim.clock import SimLoop


def test_timers_fire_in_order_and_never_early() -> None:
    async def scenario() -> list[tuple[str, float]]:
        wheel, loop = TimerWheel(), asyncio.get_running_loop()
        start, fired = loop.time(), []
        for name, delay in (("late", 0.06), ("soon", 0.01), ("now", 0.0), ("middle", 0.03)):
            wheel.call_later(delay, lambda name=name: fired.append((name, loop.time() - start)))
        await asyncio.sleep(0.15)
        return fired

    fired = SimLoop().run(scenario())
    assert [name for name, _ in fired] == ["now", "soon", "middle", "late"]
    delays = {"now": 0.0, "soon": 0.01, "middle": 0.03, "late": 0.06}
    assert all(elapsed >= delays[name] - 1e-6 for name, elapsed in fired)


def test_a_cancelled_timer_never_fires_and_one_may_cancel_another() -> None:
    async def scenario() -> list[str]:
        wheel, fired = TimerWheel(), []
        doomed = wheel.call_later(0.02, lambda: fired.append("doomed"))
        wheel.call_later(0.01, doomed.cancel)
        wheel.call_later(0.0, lambda: fired.append("first")).cancel()
        wheel.call_later(0.03, lambda: fired.append("last"))
        await asyncio.sleep(0.1)
        return fired

    assert SimLoop().run(scenario()) == ["last"]


def test_a_callback_may_set_a_timer_for_the_tick_that_is_firing() -> None:
    async def scenario() -> int:
        wheel, count = TimerWheel(), 0

        def again() -> None:
            nonlocal count
            count += 1
            if count < 5:
                wheel.call_later(0, again)

        wheel.call_later(0, again)
        await asyncio.sleep(TICK_S * 20)
        return count

    assert SimLoop().run(scenario()) == 5


def test_a_callback_that_sets_a_late_timer_holds_up_no_earlier_one() -> None:
    async def scenario() -> list[str]:
        wheel, fired = TimerWheel(), []
        wheel.call_later(0.01, lambda: wheel.call_later(60, lambda: fired.append("much later")))
        wheel.call_later(0.03, lambda: fired.append("soon"))
        await asyncio.sleep(0.1)
        return fired

    assert SimLoop().run(scenario()) == ["soon"]


@given(st.lists(st.tuples(st.integers(0, 2000), st.lists(st.integers(0, 2000), max_size=3)), max_size=20))
def test_every_timer_fires_within_a_tick_of_its_time_whoever_set_it(plan: list[tuple[int, list[int]]]) -> None:
    """A callback that set a timer once made the wheel forget those before it."""

    async def scenario() -> list[tuple[float, float]]:
        wheel, loop = TimerWheel(), asyncio.get_running_loop()
        fired: list[tuple[float, float]] = []

        def set_timer(delay_ms: int, following: list[int]) -> None:
            due = loop.time() + delay_ms / 1000

            def on_time() -> None:
                fired.append((due, loop.time()))
                for after_ms in following:
                    set_timer(after_ms, [])

            wheel.call_later(delay_ms / 1000, on_time)

        for delay_ms, following in plan:
            set_timer(delay_ms, following)
        await asyncio.sleep(5)
        return fired

    fired = SimLoop().run(scenario())
    assert len(fired) == sum(1 + len(following) for _, following in plan)
    assert all(due <= at + 1e-6 and at <= due + TICK_S + 1e-6 for due, at in fired), fired


def test_a_callback_that_fails_takes_no_other_with_it() -> None:
    async def scenario() -> list[str]:
        wheel, loop, fired = TimerWheel(), asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: fired.append(repr(context["exception"])))
        for callback in (lambda: 1 // 0, lambda: fired.append("same tick")):
            wheel.call_later(0.01, callback)
        wheel.call_later(0.02, lambda: fired.append("next"))
        for _ in range(3000):
            if "next" in fired:
                break
            await asyncio.sleep(0.01)
        return fired

    assert sorted(asyncio.run(scenario())) == sorted(
        [repr(ZeroDivisionError("integer division or modulo by zero")), "same tick", "next"]
    )


def test_cancelled_timers_of_far_deadlines_leave_nothing_behind() -> None:
    """A producer may ask for 24 days; each of its requests cancels its timer when it is answered."""

    async def scenario() -> tuple[list[str], int]:
        wheel, fired = TimerWheel(), []
        wheel.call_later(100.0, lambda: fired.append("kept"))
        for _ in range(10 * SWEPT_SLOTS_MIN):
            wheel.call_later(2**31 / 1000, lambda: fired.append("cancelled")).cancel()
            wheel.call_later(0.0, lambda: fired.append("soon")).cancel()
            await asyncio.sleep(TICK_S)
        await asyncio.sleep(60.0)
        wheel.call_later(0.0, lambda: fired.append("last"))
        await asyncio.sleep(1.0)
        return fired, len(wheel._slots)

    fired, slots = SimLoop().run(scenario())
    assert fired == ["kept", "last"]
    assert slots <= SWEPT_SLOTS_MIN


def test_sweeping_fires_no_timer_early_and_loses_none() -> None:
    async def scenario() -> list[tuple[str, float]]:
        wheel, loop = TimerWheel(), asyncio.get_running_loop()
        start, fired = loop.time(), []
        doomed = [wheel.call_later(TICK_S * (2 + number), lambda: None) for number in range(SWEPT_SLOTS_MIN)]
        for timer in doomed:
            timer.cancel()
        # This one sweeps, and was not the earliest before.
        wheel.call_later(20.0, lambda: fired.append(("late", loop.time() - start)))
        wheel.call_later(10.0, lambda: fired.append(("early", loop.time() - start)))
        await asyncio.sleep(30.0)
        return fired

    fired = SimLoop().run(scenario())
    assert [name for name, _ in fired] == ["early", "late"]
    assert fired[0][1] >= 10.0 - 1e-6 and fired[1][1] >= 20.0 - 1e-6
