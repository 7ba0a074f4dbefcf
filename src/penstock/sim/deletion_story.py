"""A topic that is deleted and made again under its name: what was deleted does not come back, in no later topic."""

from datetime import timedelta

from kio.schema.delete_topics.v6 import request as delete_request
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32Timedelta

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import SimClient, batch_of
from penstock.sim.story import Line, Stage

TOPIC = "fleeting"
PARTITION = TopicPartition(TOPIC, 0)


class DeletionStory:
    name = "topics that are deleted"

    def __init__(self, stage: Stage) -> None:
        self.complaints: list[str] = []
        self._stage = stage
        self._incarnation = 0
        self._exists = False
        self._acked: dict[int, bytes] = {}  # Of this incarnation.

    async def prepare(self) -> None:
        await self._create()

    async def _create(self) -> None:
        await self._stage.create_topic(TOPIC)
        self._incarnation += 1
        self._exists = True
        self._acked = {}

    async def act(self) -> None:
        random, line = self._stage.random, Line(self._stage.links)
        for step in range(3 * self._stage.steps):
            await self._stage.think()
            if not self._exists and random.random() < 0.5:
                await self._create()
            elif not self._exists:
                await self._look_for_it(line)
            elif random.random() < 0.25:
                await self._delete(line)
            else:
                await self._produce(line, step)

    async def _produce(self, line: Line, step: int) -> None:
        values = tuple(f"{self._incarnation}-{step}-{n}".encode() for n in range(self._stage.random.randint(1, 3)))
        batch = batch_of(values, self._stage.clock.now_ms())
        reply = await line.ask(lambda client: client.produce(PARTITION, batch))
        if reply is not None and reply.error is ErrorCode.none:
            self._acked.update(enumerate(values, reply.base_offset))

    async def _delete(self, line: Line) -> None:
        code = None
        while code is None:
            code = await line.ask(_delete_topic)
        self._stage.trace.add("delete topic", self._incarnation, code)
        # Unknown: an earlier try, whose answer was lost, has done it.
        if code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            self._exists = False
        else:
            self.complaints.append(f"deleting {TOPIC}: {code.name}")

    async def _look_for_it(self, line: Line) -> None:
        found = await line.ask(lambda client: client.metadata())
        if found is not None and TOPIC in [topic.name for topic in found.topics]:
            self.complaints.append(f"incarnation {self._incarnation} was deleted and is in the metadata")
        reply = await line.ask(lambda client: client.fetch(PARTITION, 0))
        if reply is not None and reply.error is not ErrorCode.unknown_topic_or_partition:
            self.complaints.append(f"incarnation {self._incarnation} was deleted and answers {reply}")

    async def check(self) -> None:
        line = Line(self._stage.links)
        if not self._exists:
            await self._look_for_it(line)
            await self._create()
        replies = await line.read_all(PARTITION, 0)
        assert replies is not None and replies[-1].error == 0, f"{replies}"
        there = {offset: value for reply in replies for offset, value in reply.records}
        old = [value for value in there.values() if not value.startswith(b"%d-" % self._incarnation)]
        if old:
            self.complaints.append(f"incarnation {self._incarnation} has records of an earlier one: {old}")
        gone = [value for offset, value in self._acked.items() if there.get(offset) != value]
        if gone:
            self.complaints.append(f"acked and lost: {gone}")


async def _delete_topic(client: SimClient) -> ErrorCode:
    topic = delete_request.DeleteTopicState(name=TopicName(TOPIC), topic_id=None)
    request = delete_request.DeleteTopicsRequest(topics=(topic,), timeout=i32Timedelta.parse(timedelta(seconds=30)))
    reply = await client.ask(request, DeleteTopicsResponse)
    return ErrorCode(reply.responses[0].error_code.value)
