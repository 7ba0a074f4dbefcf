"""Producers with idempotence: after a lost answer they send a batch again, and each is there once, in order."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.init_producer_id.v4 import request as init_request
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16, i32Timedelta

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import LinkLost, SimClient
from penstock.sim.story import Line, Stage
from penstock.wire.batch import Record, build_batch

TOPIC = "idempotent"
PARTITION = TopicPartition(TOPIC, 0)
WINDOW_MAX = 5  # Batches in flight, as many as a broker remembers of a producer.
RETRY_S = 0.05
REPLAY_RATE = 0.4  # Of the windows that were acknowledged.
# Not refused for good: the batch may be in the log or not, and is sent again. All are sent in order, so nobody is to
# hear that they were not.
RETRIABLE = {ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower}


@dataclass
class Batch:
    sequence: int
    values: tuple[bytes, ...]
    offsets: list[int]  # What the broker answered, each time.


class IdempotentStory:
    name = "idempotent producers"

    def __init__(self, stage: Stage, producers: int) -> None:
        self.complaints: list[str] = []
        self._stage = stage
        self._sent: list[list[Batch]] = [[] for _ in range(producers)]

    async def prepare(self) -> None:
        await self._stage.create_topic(TOPIC)

    async def act(self) -> None:
        await asyncio.gather(*(self._produce(number) for number in range(len(self._sent))))

    async def _produce(self, number: int) -> None:
        random, line = self._stage.random, Line(self._stage.links)
        while (identity := await line.ask(_init_producer_id)) is None:
            pass
        sequence = 0
        for _ in range(self._stage.steps):
            await self._stage.think()
            window = []
            for _ in range(random.randint(1, WINDOW_MAX)):
                values = tuple(f"p{number}-{sequence + n}".encode() for n in range(random.randint(1, 4)))
                window.append(Batch(sequence, values, []))
                sequence += len(values)
            self._sent[number] += window
            await self._deliver(line, window, *identity)

    async def _deliver(self, line: Line, window: list[Batch], producer_id: int, epoch: int) -> None:
        """Send the batches, again and again, until each has been acknowledged."""
        while left := [batch for batch in window if not batch.offsets]:
            client = await line.client()
            await asyncio.gather(*(self._send(client, batch, producer_id, epoch) for batch in left))
            if any(not batch.offsets for batch in window):
                await asyncio.sleep(RETRY_S)
        if self._stage.random.random() < REPLAY_RATE:
            # As one that lost all the answers, perhaps to a broker that has restarted since.
            await self._stage.think()
            client = await line.client()
            await asyncio.gather(*(self._send(client, batch, producer_id, epoch) for batch in window))

    async def _send(self, client: SimClient, batch: Batch, producer_id: int, epoch: int) -> None:
        now_ms = self._stage.clock.now_ms()
        records = [Record(n, now_ms, None, value) for n, value in enumerate(batch.values)]
        data = build_batch(
            records,
            base_offset=0,
            leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=batch.sequence,
        )
        try:
            reply = await client.produce(PARTITION, data)
        except LinkLost:
            return
        self._stage.trace.add("idempotent", producer_id, batch.sequence, reply)
        if reply.error is ErrorCode.none:
            batch.offsets.append(reply.base_offset)
        elif reply.error not in RETRIABLE:
            self.complaints.append(f"producer {producer_id}, sequence {batch.sequence}: {reply.error.name}")
            batch.offsets.append(-1)

    async def check(self) -> None:
        replies = await Line(self._stage.links).read_all(PARTITION, 0)
        assert replies is not None, "the link broke, and nobody cut it"
        records = [record for reply in replies for record in reply.records]
        there = dict(records)
        for number, batches in enumerate(self._sent):
            prefix = f"p{number}-".encode()
            found = [value for _, value in records if value.startswith(prefix)]
            sent = [value for batch in batches for value in batch.values]
            if found != sent:
                self.complaints.append(f"producer {number} sent {sent} and the log has {found}")
            for batch in batches:
                wrong = [offset for offset in batch.offsets if there.get(offset) != batch.values[0]]
                if wrong:
                    self.complaints.append(f"{batch.values[0]!r} was said to be at {wrong}")


async def _init_producer_id(client: SimClient) -> tuple[int, int]:
    request = init_request.InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout=i32Timedelta.parse(timedelta(minutes=1)),
        producer_id=ProducerId(-1),
        producer_epoch=i16(-1),
    )
    reply = await client.ask(request, InitProducerIdResponse)
    assert reply.error_code.value == 0, reply
    return reply.producer_id, reply.producer_epoch
