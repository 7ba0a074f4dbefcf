"""A compacted log: whoever reads it finds the newest value of each key, and no offset changes its record."""

import asyncio

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import FetchReply
from penstock.sim.story import Line, Stage
from penstock.wire.batch import Record, build_batch

TOPIC = "compacted"
PARTITION = TopicPartition(TOPIC, 0)
KEYS = 4


class CompactionStory:
    name = "compaction"

    def __init__(self, stage: Stage) -> None:
        self.complaints: list[str] = []
        self._stage = stage
        self._sent = 0
        self._newest = [0] * KEYS  # The number of each key's last acknowledged value; numbers start at 1.
        self._acked: dict[int, bytes] = {}

    async def prepare(self) -> None:
        await self._stage.create_topic(TOPIC, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")

    async def act(self) -> None:
        reading = asyncio.create_task(self._read(), name="compaction reader")
        await self._write()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            raise error

    async def _write(self) -> None:
        random, line = self._stage.random, Line(self._stage.links)
        for _ in range(4 * self._stage.steps):
            await self._stage.think()
            keys = [random.randrange(KEYS) for _ in range(random.randint(1, 4))]
            numbers = range(self._sent + 1, self._sent + 1 + len(keys))
            self._sent += len(keys)
            # The key is in the value, too: readers look at values only.
            values = [f"{key}:{number}:".encode().ljust(60, b".") for key, number in zip(keys, numbers, strict=True)]
            now_ms = self._stage.clock.now_ms()
            records = [Record(n, now_ms, b"%d" % keys[n], value) for n, value in enumerate(values)]
            batch = build_batch(records, base_offset=0, leader_epoch=-1)
            reply = await line.ask(lambda client, batch=batch: client.produce(PARTITION, batch))  # type: ignore[misc]
            if reply is not None and reply.error is ErrorCode.none:
                self._acked.update(enumerate(values, reply.base_offset))
                for key, number in zip(keys, numbers, strict=True):
                    self._newest[key] = number

    async def _read(self) -> None:
        line = Line(self._stage.links)
        while True:
            await self._stage.think()
            promised = list(self._newest)
            replies = await line.read_all(PARTITION, 0)
            if replies is not None and replies[-1].error == 0:
                self._compare(replies, promised)

    async def check(self) -> None:
        replies = await Line(self._stage.links).read_all(PARTITION, 0)
        assert replies is not None and replies[-1].error == 0, f"{replies}"
        self._compare(replies, self._newest)

    def _compare(self, replies: list[FetchReply], promised: list[int]) -> None:
        found, last = [0] * KEYS, -1
        for offset, value in (record for reply in replies for record in reply.records):
            key, number, _ = value.split(b":")
            found[int(key)] = int(number)
            if offset <= last or self._acked.get(offset, value) != value:
                self.complaints.append(f"{value!r} at {offset} after {last}; it was {self._acked.get(offset)!r}")
            last = offset
        if any(there < wanted for there, wanted in zip(found, promised, strict=True)):
            self.complaints.append(f"the newest values were {promised}, the log has {found}")
