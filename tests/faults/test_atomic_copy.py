"""R24 on a real broker: it, or the client, is killed in each phase of a transaction, and EndTxn is held back.

A job copies records in transactions, with the group's offsets in them: the copy must be the same, record by record, as
readers of what is committed see it; and no transaction may hold them up for longer than its timeout and ten seconds.
"""

import contextlib
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from ports import HOST, free_port

from . import figures
from .broker_process import BrokerProcess
from .copy_world import CopyWorld, wait_until_sprung
from .load import wait_until
from .trap_proxy import Moment, Trap, TrapThread

CONFIG = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
# What happens in a transaction, in this order. Markers are written once EndTxn is in the log, and after its answer.
Phase = tuple[str, ApiKey, Moment, float]  # With the seconds until the strike.
PHASES: list[Phase] = [
    ("begin", ApiKey.INIT_PRODUCER_ID, Moment.AFTER, 0.001),
    ("add", ApiKey.ADD_PARTITIONS_TO_TXN, Moment.AFTER, 0.001),
    ("produce", ApiKey.PRODUCE, Moment.AFTER, 0.001),
    ("written", ApiKey.PRODUCE, Moment.ANSWERED, 0.0),
    ("offsets", ApiKey.TXN_OFFSET_COMMIT, Moment.AFTER, 0.001),
    ("prepare", ApiKey.END_TXN, Moment.BEFORE, 0.0),
    ("prepare", ApiKey.END_TXN, Moment.AFTER, 0.001),
    ("markers", ApiKey.END_TXN, Moment.AFTER, 0.004),
    ("markers", ApiKey.END_TXN, Moment.ANSWERED, 0.0),
]


class Copying:
    """A broker behind a proxy, a topic to be copied, and what can be done to them."""

    def __init__(self, broker: BrokerProcess, traps: TrapThread, world: CopyWorld) -> None:
        self.broker, self.traps, self.world = broker, traps, world
        self.restart_s: list[float] = []

    def kill_broker_at(self, api_key: int, moment: Moment, delay_s: float) -> None:
        """And start it again."""
        trap = Trap(api_key, moment, lambda _: os.kill(self.broker.pid, signal.SIGKILL), delay_s=delay_s)
        self._wait_for(trap)
        self.broker.kill()
        self.restart_s.append(self.broker.start().seconds)

    def kill_job_at(self, api_key: int, moment: Moment, delay_s: float) -> None:
        """It is started again by itself."""
        trap = Trap(api_key, moment, lambda _: self.world.kill_job(), delay_s=delay_s)
        self._wait_for(trap)

    def hold_end(self, seconds: float, *, kills_job: bool) -> None:
        """EndTxn arrives so much later, when its transaction has been ended: by who took over, and it must be refused.

        Or by the client itself, which gives up on the answer a moment before the broker's timeout and asks again: then
        it is the same request a second time, with the same answer.
        """
        trap = Trap(ApiKey.END_TXN, Moment.HELD, lambda _: self.world.kill_job() if kills_job else None)
        self._wait_for(trap)
        time.sleep(seconds)
        self.traps.release(trap)
        wait_until(lambda: bool(trap.late_answer), "EndTxn is answered")
        # Length, correlation id, throttle time, error.
        (code,) = struct.unpack_from(">h", trap.late_answer, 12)
        refusals = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
        assert ErrorCode(code) in (refusals if kills_job else (*refusals, ErrorCode.none))

    def _wait_for(self, trap: Trap) -> None:
        if trap.api_key == ApiKey.INIT_PRODUCER_ID:
            self.traps.set(trap)
            self.world.kill_job()  # Only one that starts asks for it.
        else:
            self.traps.set(trap)
        wait_until_sprung(trap.sprung, f"{ApiKey(trap.api_key).name} {trap.moment.value}")


@contextlib.contextmanager
def copying(new_broker: Callable[..., BrokerProcess], directory: Path, *, count: int, batch: int) -> Iterator[Copying]:
    port = free_port()
    broker = new_broker(config={**CONFIG, "advertised.listeners": f"PLAINTEXT://{HOST}:{port}"})
    broker.start()
    world = CopyWorld(f"{HOST}:{port}", directory, count=count, batch=batch)
    with TrapThread() as traps:
        traps.open(port, broker.port)
        world.prepare()
        with world.copying():
            yield Copying(broker, traps, world)
        world.check()
        broker.stop()


def note(name: str, run: Copying, begun: float) -> None:
    world = run.world
    figures.note(
        name,
        f"{world.count:,} records copied, 0 missing, 0 twice, in order; {world.starts} jobs, "
        f"readers held up for {world.stuck_s:.1f} s at most; {time.monotonic() - begun:.0f} s",
        "input == output; stuck <= transaction timeout + 10 s",
    )


@pytest.mark.parametrize(
    ("count", "batch", "phases"),
    [(8_000, 100, PHASES[1:]), pytest.param(100_000, 750, PHASES * 3, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_r24_the_broker_is_killed_in_each_phase(
    new_broker: Callable[..., BrokerProcess], tmp_path: Path, count: int, batch: int, phases: list[Phase]
) -> None:
    begun = time.monotonic()
    with copying(new_broker, tmp_path, count=count, batch=batch) as run:
        for _, api_key, moment, delay_s in phases:
            run.kill_broker_at(api_key, moment, delay_s)
    note(f"R24 kill -9 the broker, {len(phases)} times", run, begun)


@pytest.mark.parametrize(
    ("count", "batch", "phases"),
    [(8_000, 100, PHASES[1:7:2]), pytest.param(100_000, 750, PHASES * 3, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_r24_the_client_is_killed_in_each_phase(
    new_broker: Callable[..., BrokerProcess], tmp_path: Path, count: int, batch: int, phases: list[Phase]
) -> None:
    begun = time.monotonic()
    with copying(new_broker, tmp_path, count=count, batch=batch) as run:
        for name, api_key, moment, delay_s in phases:
            # Its heir has another id: only the timeout ends what it left open.
            run.world.has_own_id = name != "written"
            run.kill_job_at(api_key, moment, delay_s)
    note(f"R24 kill -9 the client, {len(phases)} times", run, begun)
    assert run.world.stuck_s > 1, "nobody was held up by what a client has left open: was anybody watching?"


@pytest.mark.parametrize(
    ("count", "batch", "hold_s"), [(4_000, 100, 3.0), pytest.param(50_000, 750, 30.0, marks=pytest.mark.long)]
)
def test_r24_end_txn_comes_late(
    new_broker: Callable[..., BrokerProcess], tmp_path: Path, count: int, batch: int, hold_s: float
) -> None:
    begun = time.monotonic()
    with copying(new_broker, tmp_path, count=count, batch=batch) as run:
        run.hold_end(hold_s, kills_job=True)
        if hold_s > 10:
            run.world.feed(count)  # All may be copied by now.
            run.hold_end(hold_s, kills_job=False)
    note(f"R24 EndTxn held back for {hold_s:.0f} s", run, begun)
