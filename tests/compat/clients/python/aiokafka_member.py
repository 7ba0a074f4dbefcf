"""A member of a consumer group: aiokafka, its loop turning in a thread, so that heartbeats go on while it is held."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import member_loop
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from member_loop import Offsets, Records

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}

T = TypeVar("T")


class AiokafkaMember(ConsumerRebalanceListener):
    def __init__(self, settings: member_loop.Settings, story: member_loop.Story) -> None:
        self._topic, self._story = settings.topic, story
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._consumer: AIOKafkaConsumer = self._wait(self._start(settings))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, settings: member_loop.Settings) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,
            client_id=settings.name,
            partition_assignment_strategy=[ASSIGNORS[settings.assignor]],
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
        )
        self._consumer = consumer  # The callbacks may come before start() is done.
        consumer.subscribe([settings.topic], listener=self)
        await consumer.start()
        return consumer

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        coordinator = self._consumer._coordinator  # There is no public way to the generation.
        partitions = {one.partition for one in assigned}
        self._story.assigned(partitions, generation=coordinator.generation, member=coordinator.member_id)

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._story.revoked({one.partition for one in revoked})

    def poll(self) -> tuple[int, Records]:
        return self._wait(self._poll())

    async def _poll(self) -> tuple[int, Records]:
        polled = await self._consumer.getmany(timeout_ms=int(member_loop.POLL_S * 1000), max_records=100)
        generation = self._story.generation  # Here, where rebalances happen: when the caller wakes, it may be the next.
        return generation, [(m.partition, m.offset, m.value.decode()) for ms in polled.values() for m in ms]

    def commit(self, offsets: Offsets) -> None:
        wanted = {TopicPartition(self._topic, partition): offset for partition, offset in offsets.items()}
        self._wait(self._consumer.commit(wanted))

    def close(self) -> None:
        self._wait(self._consumer.stop())


if __name__ == "__main__":
    told = member_loop.Story()
    member_loop.run(AiokafkaMember(member_loop.Settings(), told), told)
