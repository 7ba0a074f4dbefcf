"""What consumer groups cost the broker: heartbeats of many groups, and the rebalance of a large one.

    python -m bench.groups

Members are made of raw requests in this process, one connection each, so that the broker's own work is what is seen.
"""

import asyncio
import struct
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop

from bench.brokers import Penstock
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct, request_writer, response_reader

GROUPS = 1_000
MEMBERS = 10
HEARTBEAT_S = 3.0  # The default of Kafka's clients.
LARGE_GROUP = 200
LARGE_HEARTBEAT_S = 1.0
SECONDS = 20.0
JOIN_VERSION = SYNC_VERSION = 3
HEARTBEAT_VERSION = 3
FIND_VERSION = 2
REBALANCE_IN_PROGRESS = 27


class Member:
    """One member: joins, syncs, and heartbeats until it is told to rejoin."""

    def __init__(self, port: int, group_id: str) -> None:
        self._port = port
        self._group_id = group_id
        self._member_id = ""
        self.generation = -1
        self.rebalanced_at = 0.0
        self.slowest_s = 0.0

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        await self.find_coordinator()  # Whoever asks nothing for ten seconds is closed.

    async def find_coordinator(self) -> int:
        reply = await self._ask(ApiKey.FIND_COORDINATOR, FIND_VERSION, Struct(key=self._group_id, key_type=0))
        return int(reply.error_code)

    async def join(self) -> None:
        """One whole rebalance, as seen by this member."""
        error = REBALANCE_IN_PROGRESS
        while error:
            members = await self._join()
            error = await self._sync(members)
        self.rebalanced_at = time.perf_counter()

    async def _join(self) -> list[str]:
        message = Struct(
            group_id=self._group_id,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[Struct(name="range", metadata=bytes(100))],
            reason=None,
        )
        reply = await self._ask(ApiKey.JOIN_GROUP, JOIN_VERSION, message)
        assert reply.error_code == 0, f"join answered {reply.error_code}"
        self.generation, self._member_id = reply.generation_id, reply.member_id
        return [member.member_id for member in reply.members]

    async def _sync(self, members: list[str]) -> int:
        message = Struct(
            group_id=self._group_id,
            generation_id=self.generation,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type=None,
            protocol_name=None,
            assignments=[Struct(member_id=member, assignment=bytes(50)) for member in members],
        )
        return int((await self._ask(ApiKey.SYNC_GROUP, SYNC_VERSION, message)).error_code)

    async def heartbeat(self) -> int:
        message = Struct(
            group_id=self._group_id,
            generation_id=self.generation,
            member_id=self._member_id,
            group_instance_id=None,
        )
        start = time.perf_counter()
        reply = await self._ask(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, message)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - start)
        return int(reply.error_code)

    async def live(self, first_delay_s: float, interval_s: float) -> None:
        await asyncio.sleep(first_delay_s)
        while True:
            error = await self.heartbeat()
            if error == REBALANCE_IN_PROGRESS:
                await self.join()
            else:
                assert error == 0, f"heartbeat answered {error}"
            await asyncio.sleep(interval_s)

    async def _ask(self, key: ApiKey, version: int, message: Struct) -> Struct:
        body = bytearray(struct.pack(">hhih", key, version, 0, -1))
        request_writer(key, version)(body, message)
        self._writer.write(struct.pack(">i", len(body)) + bytes(body))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        reply, _ = response_reader(key, version)(await self._reader.readexactly(size), 4)
        return cast(Struct, reply)


async def make_members(port: int, group_id: str, count: int) -> list[Member]:
    """Members that are connected and have not joined yet."""
    members = [Member(port, group_id) for _ in range(count)]
    for member in members:
        await member.connect()
    return members


async def find_coordinator(member: Member) -> None:
    """Ask until it is there: the first who asks has its topic made."""
    for _ in range(100):
        if await member.find_coordinator() == 0:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("no coordinator after 10 s")


async def measure_heartbeats(broker: Penstock) -> None:
    members: list[Member] = []
    for number in range(GROUPS):
        members += await make_members(broker.port, f"group-{number}", MEMBERS)
    await find_coordinator(members[0])
    start = time.perf_counter()
    await asyncio.gather(*(member.join() for member in members))
    print(f"{GROUPS:,} groups of {MEMBERS} members joined in {time.perf_counter() - start:.1f} s (3.0 s is the delay)")
    count = len(members)
    tasks = [
        asyncio.create_task(member.live(HEARTBEAT_S * number / count, HEARTBEAT_S))
        for number, member in enumerate(members)
    ]
    await asyncio.sleep(HEARTBEAT_S)
    for member in members:
        member.slowest_s = 0.0
    cpu_s, start = broker.process.cpu_s, time.perf_counter()
    await asyncio.sleep(SECONDS)
    share = (broker.process.cpu_s - cpu_s) / (time.perf_counter() - start)
    rate = count / HEARTBEAT_S
    slowest = max(member.slowest_s for member in members)
    print(
        f"{rate:,.0f} heartbeats/s on {count:,} connections: {share:.0%} of a core,"
        f" {share / rate * 1e6:.0f} µs each, the slowest answered after {slowest * 1000:.0f} ms,"
        f" {broker.process.resident_mb:.0f} MB resident"
    )
    await stop(tasks)


async def measure_rebalance(broker: Penstock) -> None:
    """From a new member's first request until the last member has its part again."""
    members = await make_members(broker.port, "large", LARGE_GROUP - 1)
    await find_coordinator(members[0])
    await asyncio.gather(*(member.join() for member in members))
    tasks = [
        asyncio.create_task(member.live(LARGE_HEARTBEAT_S * number / LARGE_GROUP, LARGE_HEARTBEAT_S))
        for number, member in enumerate(members)
    ]
    await asyncio.sleep(LARGE_HEARTBEAT_S)
    cpu_s, start = broker.process.cpu_s, time.perf_counter()
    (newcomer,) = await make_members(broker.port, "large", 1)
    await newcomer.join()
    await asyncio.sleep(1)  # Others may hear of their part after the newcomer.
    assert {member.generation for member in members} == {newcomer.generation}, "not all have rejoined"
    elapsed = max(member.rebalanced_at for member in [*members, newcomer]) - start
    print(
        f"rebalance of {LARGE_GROUP} members, heartbeats every {LARGE_HEARTBEAT_S:.0f} s: {elapsed:.2f} s,"
        f" {broker.process.cpu_s - cpu_s:.2f} s of the broker's CPU"
    )
    await stop(tasks)


async def stop(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, asyncio.CancelledError):
            raise RuntimeError("a member failed") from result


class DelayingPenstock(Penstock):
    settings = ""  # Members that start together get one rebalance.


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, DelayingPenstock(Path(directory)) as broker:
        uvloop.run(measure_rebalance(broker))
        uvloop.run(measure_heartbeats(broker))


if __name__ == "__main__":
    main()
