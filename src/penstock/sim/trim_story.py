"""A log that is cut at its start, by DeleteRecords and by its size: what was deleted stays deleted, the rest stays."""

from datetime import timedelta

from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import FetchReply, ProduceReply, SimClient, batch_of
from penstock.sim.story import Line, Stage

TOPIC = "trimmed"
PARTITION = TopicPartition(TOPIC, 0)
RETENTION_BYTES = 3000


class TrimStory:
    name = "records that are deleted"

    def __init__(self, stage: Stage) -> None:
        self.complaints: list[str] = []
        self._stage = stage
        self._acked: dict[int, bytes] = {}
        self._end = 0  # After the last that was acknowledged.
        self._start = 0  # Below it everything was deleted, and the answer said so.
        self._asked = 0  # The furthest that any DeleteRecords was to go, answered or not.

    async def prepare(self) -> None:
        await self._stage.create_topic(TOPIC, retention_bytes=str(RETENTION_BYTES))

    async def act(self) -> None:
        random, line = self._stage.random, Line(self._stage.links)
        for step in range(3 * self._stage.steps):
            await self._stage.think()
            choice = random.random()
            if choice < 0.6:
                values = tuple(f"{step}-{n}".encode().ljust(100, b".") for n in range(random.randint(1, 3)))
                await self._produce(line, values)
            elif choice < 0.8:
                await self._delete(line, random.randint(0, self._end))
            else:
                await self._look(line, random.randint(0, self._end))

    async def _produce(self, line: Line, values: tuple[bytes, ...]) -> None:
        batch = batch_of(values, self._stage.clock.now_ms())
        reply: ProduceReply | None = await line.ask(lambda client: client.produce(PARTITION, batch))
        if reply is not None and reply.error is ErrorCode.none:
            self._acked.update(enumerate(values, reply.base_offset))
            self._end = reply.base_offset + len(values)

    async def _delete(self, line: Line, offset: int) -> None:
        self._asked = max(self._asked, offset)
        reply = await line.ask(lambda client: _delete_records(client, offset))
        self._stage.trace.add("delete records", offset, reply)
        if reply is None:
            return
        code, low_watermark = reply
        if code is ErrorCode.none:
            if low_watermark < offset:
                self.complaints.append(f"records below {offset} were deleted, and the log starts at {low_watermark}")
            self._start = max(self._start, low_watermark)
        elif code is not ErrorCode.kafka_storage_error:
            self.complaints.append(f"DeleteRecords to {offset} of {self._end}: {code.name}")

    async def _look(self, line: Line, offset: int) -> None:
        start = self._start
        reply = await line.ask(lambda client: client.fetch(PARTITION, offset))
        if reply is not None:
            self._check_reply(reply, offset, start)

    def _check_reply(self, reply: FetchReply, offset: int, start: int) -> None:
        if reply.error is ErrorCode.none:
            if offset < start:
                self.complaints.append(f"offset {offset} can be read, although all below {start} was deleted")
            for number, (at, value) in enumerate(reply.records):
                if at != offset + number or self._acked.get(at, value) != value:
                    self.complaints.append(f"at {offset + number} was {self._acked.get(at)!r}, now {value!r} at {at}")
        elif reply.error is ErrorCode.offset_out_of_range and 0 <= reply.log_start <= offset and self._asked <= offset:
            # Without a log start (-1) retention may have been there; `check` looks at what it left.
            self.complaints.append(f"offset {offset} is out of range; the log starts at {reply.log_start}")

    async def check(self) -> None:
        line = Line(self._stage.links)
        lost = await line.ask(lambda client: client.fetch(PARTITION, self._end))
        assert lost is not None, "the link broke, and nobody cut it"
        log_start = lost.log_start
        if log_start < self._start:
            self.complaints.append(f"the log starts at {log_start}, all below {self._start} was deleted")
        replies = await line.read_all(PARTITION, log_start)
        assert replies is not None, "the link broke, and nobody cut it"
        for reply, at in zip(replies, [log_start, *(reply.next_offset for reply in replies)], strict=False):
            self._check_reply(reply, at, self._start)
        there = {offset: value for reply in replies for offset, value in reply.records}
        gone = [offset for offset in self._acked if offset >= log_start and offset not in there]
        if gone:
            self.complaints.append(f"acked and lost: {gone}, the log starts at {log_start}")
        kept_bytes = sum(map(len, there.values()))
        if log_start > self._asked and kept_bytes + len(there) * 80 < RETENTION_BYTES:
            self.complaints.append(f"retention went too far: {kept_bytes} bytes are left from {log_start} on")


async def _delete_records(client: SimClient, offset: int) -> tuple[ErrorCode, int]:
    partition = delete_request.DeleteRecordsPartition(partition_index=i32(0), offset=i64(offset))
    topic = delete_request.DeleteRecordsTopic(name=TopicName(TOPIC), partitions=(partition,))
    request = delete_request.DeleteRecordsRequest(topics=(topic,), timeout=i32Timedelta.parse(timedelta(seconds=30)))
    answer = (await client.ask(request, DeleteRecordsResponse)).topics[0].partitions[0]
    return ErrorCode(answer.error_code.value), answer.low_watermark
