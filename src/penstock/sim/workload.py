"""Clients that write and read at random, and note what they did and saw."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import FetchReply, LinkLost, NoReply, ProduceReply, SimClient, batch_of
from penstock.sim.history import History, Log, Poll, Polled, Send, Sent
from penstock.sim.network import SimNetwork
from penstock.sim.scenario import Scenario

RECONNECT_SECONDS = 0.02
PIPELINE_MAX = 3
CORRUPT_RATE = 0.03
REREAD_RATE = 0.2  # Of the polls: from an older offset, through the index.

# After these the broker has kept nothing of the batch. Other errors leave that open.
REFUSALS = {
    ErrorCode.corrupt_message,
    ErrorCode.invalid_record,
    ErrorCode.message_too_large,
    ErrorCode.unknown_topic_or_partition,
}


class Links:
    """Connections to the broker, made again when they break."""

    def __init__(self, network: SimNetwork, port: int) -> None:
        self.made = 0
        self._network = network
        self._port = port

    async def connect(self) -> SimClient:
        """A new connection, as soon as somebody listens."""
        while True:
            try:
                client = await SimClient.connect(self._network, self._port)
            except ConnectionError:
                await asyncio.sleep(RECONNECT_SECONDS)
            else:
                self.made += 1
                client.number = self.made
                return client


class Workload:
    def __init__(
        self,
        *,
        scenario: Scenario,
        links: Links,
        history: History,
        clock: Clock,
        durable: Sequence[TopicPartition],
        volatile: Sequence[TopicPartition],
        losses: Callable[[], int],
        has_room: Callable[[], bool],
    ) -> None:
        self.complaints: list[str] = []  # What no history can show: silence, and offsets that no longer exist.
        self._scenario = scenario
        self._links = links
        self._history = history
        self._clock = clock
        self._durable = set(durable)
        self._partitions = [*durable, *volatile]
        self._losses = losses
        self._has_room = has_room
        self._sent = 0

    def log_of(self, partition: TopicPartition) -> Log:
        """The partition in its present life."""
        return Log(partition, 0 if partition in self._durable else self._losses())

    # Writing

    async def produce(self, number: int) -> None:
        """Send the scenario's number of batches, some of them pipelined."""
        random = Random(f"producer-{self._scenario.seed}-{number}")
        left = self._scenario.sends
        client = await self._links.connect()
        while left:
            await asyncio.sleep(self._scenario.think_seconds * random.random())
            if client.lost:
                client = await self._links.connect()
            partition = random.choice(self._partitions)
            # Together on one link: the broker works on all of them at once and answers in order.
            count = min(left, random.randint(1, PIPELINE_MAX))
            sends = [self._send(client, self.log_of(partition), number, random) for _ in range(count)]
            await asyncio.gather(*sends)
            left -= count
        client.close()

    def _send(self, client: SimClient, log: Log, producer: int, random: Random) -> "asyncio.Task[None]":
        values = tuple(self._new_value(producer, random) for _ in range(random.randint(1, self._scenario.records_max)))
        batch = batch_of(values, self._clock.now_ms())
        if random.random() < CORRUPT_RATE:
            batch[-1] ^= 0x55
        return asyncio.ensure_future(self._sending(client, Send(log, client.number, values), batch))

    def _new_value(self, producer: int, random: Random) -> bytes:
        self._sent += 1
        name = f"p{producer}-{self._sent}".encode()
        return name.ljust(random.randint(0, self._scenario.value_bytes_max), b".")

    async def _sending(self, client: SimClient, send: Send, batch: bytearray) -> None:
        number = self._history.invoke(send)
        try:
            reply: ProduceReply = await client.produce(send.log.partition, batch)
        except LinkLost:
            self._history.info(number, send, "link lost")
        except NoReply as error:
            self._history.info(number, send, "no reply")
            self.complaints.append(str(error))
        else:
            if reply.error is ErrorCode.none:
                self._history.ok(number, send, Sent(reply.base_offset))
            elif reply.error in REFUSALS:
                self._history.fail(number, send, reply.error.name)
            else:
                self._history.info(number, send, reply.error.name)

    # Reading

    async def follow(self, number: int) -> None:
        """Read all partitions from the start and then as they grow, until cancelled."""
        random = Random(f"reader-{self._scenario.seed}-{number}")
        client = await self._links.connect()
        positions: dict[Log, int] = {}
        while True:
            await asyncio.sleep(self._scenario.think_seconds * random.random())
            if client.lost:
                client = await self._links.connect()
            log = self.log_of(random.choice(self._partitions))
            position = positions.get(log, 0)
            if random.random() < REREAD_RATE:
                await self._poll(client, log, random.randint(0, position), 0, random.choice((1, 500, 1 << 20)))
                continue
            reply = await self._poll(client, log, position, random.choice((0, 20, 200)), 1 << 20)
            if reply is not None and reply.records:
                positions[log] = reply.records[-1][0] + 1

    async def read_all(self) -> dict[Log, list[tuple[int, bytes]]]:
        """Everything that is in the partitions now. The broker must be up and stay up."""
        client = await self._links.connect()
        contents: dict[Log, list[tuple[int, bytes]]] = {}
        for partition in self._partitions:
            log = self.log_of(partition)
            records = contents[log] = []
            while True:
                reply = await self._poll(client, log, len(records), 0, 1 << 20)
                if reply is None:
                    self.complaints.append(f"{partition} could not be read at the end")
                    break
                records += reply.records
                if len(records) >= reply.high_watermark:
                    break
                if not reply.records:
                    self.complaints.append(f"{partition} shows nothing at {len(records)}, below its high watermark")
                    break
        client.close()
        return contents

    async def _poll(self, client: SimClient, log: Log, start: int, wait_ms: int, bytes_max: int) -> FetchReply | None:
        poll = Poll(log, start)
        number = self._history.invoke(poll)
        try:
            reply = await client.fetch(log.partition, start, wait_ms=wait_ms, bytes_max=bytes_max)
        except LinkLost:
            self._history.info(number, poll, "link lost")
            return None
        except NoReply as error:
            self._history.info(number, poll, "no reply")
            self.complaints.append(str(error))
            return None
        if reply.error is not ErrorCode.none:
            self._history.fail(number, poll, reply.error.name)
            if not self._is_excused(reply.error):
                self.complaints.append(f"fetch of {log.partition} at {start}: {reply.error.name}")
            return None
        self._history.ok(number, poll, Polled(reply.high_watermark, tuple(reply.records)))
        return reply

    def _is_excused(self, error: ErrorCode) -> bool:
        if error is ErrorCode.kafka_storage_error:
            # After a failed sync a log is written anew before it is read, and that takes room.
            return not self._has_room()
        return error is ErrorCode.unknown_topic_or_partition

    async def check_alive(self) -> None:
        """Complain unless every partition takes a record. The broker must be up and stay up."""
        client = await self._links.connect()
        random = Random(f"alive-{self._scenario.seed}")
        topics = {topic.name: topic.partitions for topic in (await client.metadata()).topics}
        known = [
            TopicPartition(str(name), p.partition_index) for name in topics for p in topics[name] if p.leader_id >= 0
        ]
        if sorted(known) != sorted(self._partitions):
            self.complaints.append(f"metadata has leaders for {known}")
        for partition in self._partitions:
            value = self._new_value(0, random)
            send = Send(self.log_of(partition), client.number, (value,))
            number = self._history.invoke(send)
            reply = await client.produce(partition, batch_of(send.values, self._clock.now_ms()))
            if reply.error is ErrorCode.none:
                self._history.ok(number, send, Sent(reply.base_offset))
            else:
                self._history.info(number, send, reply.error.name)
                self.complaints.append(f"{partition} takes no records at the end: {reply.error.name}")
        client.close()

    async def create_topics(self, names: Iterable[tuple[str, int, dict[str, str]]]) -> None:
        """Create the topics, however often the broker dies over it."""
        for name, partitions, configs in names:
            error = await create_topic(self._links, name, partitions, configs)
            if error is not ErrorCode.none:
                self.complaints.append(f"creating {name}: {error}")


async def create_topic(links: Links, name: str, partitions: int, configs: dict[str, str]) -> ErrorCode:
    """Create the topic, however often the broker dies over it."""
    while True:
        client = await links.connect()
        try:
            error = await client.create_topic(name, partitions, configs)
        except LinkLost:
            await asyncio.sleep(RECONNECT_SECONDS)
            continue
        client.close()
        return ErrorCode.none if error is ErrorCode.topic_already_exists else error
