"""Clients of a cluster that follow its leaders, write and read at random, and note what they did and saw."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import inf
from random import Random
from typing import TypeVar

from kio.schema.init_producer_id.v4 import request as init_request
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16, i32Timedelta

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import FetchReply, LinkLost, NoReply, SimClient, batch_of
from penstock.sim.cluster_scenario import ClusterScenario
from penstock.sim.history import History, Log, Poll, Polled, Send, Sent
from penstock.sim.network import SimNetwork
from penstock.sim.router import REQUEST_S, Leader, Router
from penstock.sim.witness import Witness
from penstock.wire.batch import Record, build_batch

R = TypeVar("R")

RETRY_S = 0.1
WINDOW_MAX = 5  # Batches in flight, as many as a broker remembers of a producer.
PIPELINE_MAX = 3
REREAD_RATE = 0.2
AUDITOR = 100  # The number of the reader that reads everything at the end.
RECOVERY_S = 60.0  # After everything has healed, what every partition may take until it serves again.

# After these the broker has kept nothing of the batch. Other errors leave that open.
REFUSALS = {
    ErrorCode.corrupt_message,
    ErrorCode.invalid_record,
    ErrorCode.message_too_large,
    ErrorCode.not_enough_replicas,
}
# An idempotent producer sends the batch again after these. It sends in order, so it is never told that it did not.
RETRIABLE = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.leader_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.kafka_storage_error,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
}
# Whoever is asked is no leader, has not yet heard that it is, or may not show anything yet.
UNREADABLE = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.leader_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_not_available,
    ErrorCode.replica_not_available,
}


@dataclass
class Batch:
    send: Send
    number: int  # In the history.
    sequence: int
    is_done: bool = False


class ClusterWorkload:
    def __init__(
        self,
        *,
        scenario: ClusterScenario,
        network: SimNetwork,
        history: History,
        clock: Clock,
        partitions: Sequence[TopicPartition],
        witness: Witness,
    ) -> None:
        self.complaints: list[str] = []
        self.must_serve_by = inf  # Known when everything has healed.
        self._scenario = scenario
        self._network = network
        self._history = history
        self._clock = clock
        self._partitions = list(partitions)
        self._witness = witness
        self._values = itertools.count(1)
        self._links = itertools.count(1)
        self._producer_ids: set[int] = set()

    def router(self, name: str) -> Router:
        random = Random(f"router-{name}-{self._scenario.seed}")
        return Router(self._network, range(1, self._scenario.brokers + 1), random, self._links)

    async def create_topic(self, name: str, replication_factor: int, config: dict[str, str]) -> None:
        """Create the topic when all brokers are there, however often it takes."""
        router, count = self.router("admin"), len(self._partitions)
        while True:
            metadata = await router.refresh()
            if metadata is None or len(metadata.brokers) < self._scenario.brokers or metadata.controller_id < 0:
                await asyncio.sleep(RETRY_S)
                continue
            code = await router.ask(
                lambda client: client.create_topic(name, count, config, replication_factor, REQUEST_S),
                metadata.controller_id,
            )
            if code in (ErrorCode.none, ErrorCode.topic_already_exists):
                break
            await asyncio.sleep(RETRY_S)
        router.close()

    # Writing

    async def produce(self, number: int) -> None:
        """Without idempotence: each batch once, and what is not acknowledged may or may not be there."""
        random = Random(f"producer-{self._scenario.seed}-{number}")
        router = self.router(f"producer-{number}")
        for _ in range(self._scenario.sends):
            await asyncio.sleep(self._scenario.think_s * random.random())
            partition = random.choice(self._partitions)
            found = await router.leader(partition)
            if found is None:
                continue
            leader, client = found
            sends = [
                self._send_once(router, client, leader, Send(Log(partition, 0), client.number, values))
                for values in self._windows(f"p{number}", random, PIPELINE_MAX)
            ]
            await asyncio.gather(*sends)
        router.close()

    async def _send_once(self, router: Router, client: SimClient, leader: Leader, send: Send) -> None:
        number = self._history.invoke(send)
        batch = batch_of(send.values, self._clock.now_ms())
        code = await self._deliver(router, client, leader, send, number, batch)
        if code is None:
            self._history.info(number, send, "no reply")
        elif code in REFUSALS:
            self._history.fail(number, send, code.name)
        elif code is not ErrorCode.none:
            self._history.info(number, send, code.name)

    async def produce_idempotently(self, number: int) -> None:
        """Each batch again and again until it is acknowledged; it is then there once, and in its place."""
        random = Random(f"idempotent-{self._scenario.seed}-{number}")
        router = self.router(f"idempotent-{number}")
        identity = await self._try(partial(router.ask, self._init_producer_id), "producer id")
        if identity is None:
            return
        sequences = dict.fromkeys(self._partitions, 0)
        for _ in range(self._scenario.sends):
            await asyncio.sleep(self._scenario.think_s * random.random())
            partition = random.choice(self._partitions)
            window = []
            for values in self._windows(f"i{number}", random, WINDOW_MAX):
                # All on one link, whatever connections it takes: idempotence keeps their order.
                send = Send(Log(partition, 0), -number, values)
                window.append(Batch(send, self._history.invoke(send), sequences[partition]))
                sequences[partition] += len(values)
            deliver = partial(self._send_window, router, partition, window, *identity)
            if await self._try(deliver, f"writing to {partition}") is None:
                return
        router.close()

    async def _send_window(
        self, router: Router, partition: TopicPartition, window: list[Batch], producer_id: int, epoch: int
    ) -> bool | None:
        """Send what is not yet acknowledged; True when nothing is left."""
        found = await router.leader(partition)
        if found is None:
            return None
        leader, client = found
        left = [batch for batch in window if not batch.is_done]
        codes = await asyncio.gather(
            *(
                self._deliver(router, client, leader, batch.send, batch.number, data)
                for batch, data in [(batch, self._numbered(batch, producer_id, epoch)) for batch in left]
            )
        )
        for batch, code in zip(left, codes, strict=True):
            if code is ErrorCode.none:
                batch.is_done = True
            elif code is not None and code not in RETRIABLE:
                self.complaints.append(f"producer {producer_id}, {partition}, sequence {batch.sequence}: {code.name}")
                return True
        return True if all(batch.is_done for batch in window) else None

    def _numbered(self, batch: Batch, producer_id: int, epoch: int) -> bytearray:
        now_ms = self._clock.now_ms()
        records = [Record(n, now_ms, None, value) for n, value in enumerate(batch.send.values)]
        return build_batch(
            records,
            base_offset=0,
            leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=batch.sequence,
        )

    async def _init_producer_id(self, client: SimClient) -> tuple[int, int] | None:
        request = init_request.InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout=i32Timedelta.parse(timedelta(minutes=1)),
            producer_id=ProducerId(-1),
            producer_epoch=i16(-1),
        )
        reply = await client.ask(request, InitProducerIdResponse, within_s=REQUEST_S)
        if reply.error_code.value != 0:
            return None
        if reply.producer_id in self._producer_ids:
            self.complaints.append(f"two producers have the id {reply.producer_id}")
        self._producer_ids.add(reply.producer_id)
        return reply.producer_id, reply.producer_epoch

    def _windows(self, prefix: str, random: Random, count_max: int) -> list[tuple[bytes, ...]]:
        """Values for a few batches, unique in the whole run."""
        scenario = self._scenario
        return [
            tuple(
                f"{prefix}-{next(self._values)}".encode().ljust(random.randint(0, scenario.value_bytes_max), b".")
                for _ in range(random.randint(1, scenario.records_max))
            )
            for _ in range(random.randint(1, count_max))
        ]

    async def _deliver(
        self, router: Router, client: SimClient, leader: Leader, send: Send, number: int, batch: bytearray
    ) -> ErrorCode | None:
        """The broker's answer, noted when it is good; None when there is none."""
        registration = self._witness.registration_of(leader.broker)
        try:
            reply = await client.produce(send.log.partition, batch, within_s=REQUEST_S)
        except LinkLost:
            router.doubt()
            return None
        except NoReply:
            client.abort()
            router.doubt()
            return None
        if reply.error is ErrorCode.none:
            self._history.ok(number, send, Sent(reply.base_offset, leader.broker))
            self._witness.on_acked(send, leader.broker, registration)
        else:
            router.doubt()
        return reply.error

    async def _try(self, attempt: Callable[[], Awaitable[R | None]], what: str) -> R | None:
        """Try until it works; when it does not for too long after everything has healed, complain and give None."""
        while (result := await attempt()) is None:
            if asyncio.get_running_loop().time() > self.must_serve_by:
                self.complaints.append(f"not served {RECOVERY_S} s after everything healed: {what}")
                return None
            await asyncio.sleep(RETRY_S)
        return result

    # Reading

    async def follow(self, number: int) -> None:
        """Read all partitions from the start and then as they grow, until cancelled."""
        random = Random(f"reader-{self._scenario.seed}-{number}")
        router = self.router(f"reader-{number}")
        positions: dict[TopicPartition, int] = {}
        while True:
            await asyncio.sleep(self._scenario.think_s * random.random())
            partition = random.choice(self._partitions)
            position = positions.get(partition, 0)
            if random.random() < REREAD_RATE:
                await self._poll(router, partition, random.randint(0, position), 0, number)
                continue
            reply = await self._poll(router, partition, position, random.choice((0, 200)), number)
            if reply is not None and reply.records:
                positions[partition] = reply.records[-1][0] + 1

    async def _poll(
        self, router: Router, partition: TopicPartition, start: int, wait_ms: int, reader: int
    ) -> FetchReply | None:
        found = await router.leader(partition)
        if found is None:
            return None
        leader, client = found
        poll = Poll(Log(partition, 0), start, reader)
        number = self._history.invoke(poll)
        try:
            reply = await client.fetch(partition, start, wait_ms=wait_ms, leader_epoch=leader.epoch, within_s=REQUEST_S)
        except (LinkLost, NoReply):
            client.abort()
            router.doubt()
            self._history.info(number, poll, "no reply")
            return None
        if reply.error is not ErrorCode.none:
            router.doubt()
            self._history.fail(number, poll, reply.error.name)
            if reply.error not in UNREADABLE:
                self.complaints.append(f"fetch of {partition} at {start} from {leader}: {reply.error.name}")
            return None
        self._history.ok(number, poll, Polled(reply.high_watermark, tuple(reply.records)))
        self._witness.on_shown(poll.log, reply.records)
        return reply

    # The end: everything has healed and stays so.

    async def check_alive(self) -> None:
        """Complain unless every partition takes a record in time."""
        router = self.router("alive")
        for number, partition in enumerate(self._partitions):
            # Like an idempotent producer of one batch each: an answer that is lost does not make it two.
            identity = await self._try(partial(router.ask, self._init_producer_id), "producer id at the end")
            if identity is None:
                return
            send = Send(Log(partition, 0), -100 - number, (f"alive-{number}".encode(),))
            window = [Batch(send, self._history.invoke(send), 0)]
            await self._try(partial(self._send_window, router, partition, window, *identity), f"writing to {partition}")
        router.close()

    async def read_all(self) -> dict[Log, list[tuple[int, bytes]]]:
        """Everything that is in the partitions now."""
        router = self.router("auditor")
        contents: dict[Log, list[tuple[int, bytes]]] = {}
        for partition in self._partitions:
            records = contents[Log(partition, 0)] = []
            while True:
                poll = partial(self._poll, router, partition, len(records), 0, AUDITOR)
                reply = await self._try(poll, f"reading {partition}")
                if reply is None:
                    break
                records += reply.records
                if len(records) >= reply.high_watermark:
                    break
                if not reply.records:
                    self.complaints.append(f"{partition} shows nothing at {len(records)}, below its high watermark")
                    break
        router.close()
        return contents
