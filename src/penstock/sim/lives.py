"""One life of a broker, from its start to the end that the scenario has for it."""

from penstock.sim.machine import Machine
from penstock.sim.process import Killed
from penstock.sim.scenario import Life, Outage


async def live_once(machine: Machine, life: Life) -> None:
    """Start the broker, let it run, and end it; it may die before that by itself, or be killed by others."""
    disk = machine.disk
    disk.heal()
    if life.sync_fails is not None:
        disk.fail_syncs.add(disk.syncs + life.sync_fails)
    if life.free_bytes is not None:
        disk.fill(life.free_bytes)
    if life.end is Outage.POWER_AT_OPERATION:
        disk.cut_power_at = disk.operations + life.operations
    try:
        await machine.start()
        if await machine.wait_down(life.up_seconds):
            return
        if life.end is Outage.STOP:
            await machine.stop()
            return
    except Killed:
        return
    except OSError:
        # It does not start where it could lose what it has promised: a full disk, with records in the journal alone.
        if life.free_bytes is None and life.sync_fails is None:
            raise
        machine.kill()
        return
    if life.end is Outage.KILL:
        machine.kill()
    else:
        machine.cut_power()
