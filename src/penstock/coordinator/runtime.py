"""The runtime of every coordinator: which partition of its topic a key belongs to, and that partition's shard at work.

A coordinator has a topic of its own. Who leads one of its partitions coordinates the keys of that partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import TimerWheel
from penstock.base.types import NodeId, TopicPartition
from penstock.cluster.image import EMPTY_IMAGE, BrokerRegistration, ClusterImage
from penstock.cluster.topic_plan import NewTopic, TopicResult
from penstock.coordinator.decision import Decision, Now, Response, Token
from penstock.coordinator.shard import RecordCodec, Shard
from penstock.coordinator.shard_runner import ShardRunner
from penstock.partition.manager import PartitionManager
from penstock.storage.fs import FileSystem

log = get_logger(__name__)

S = TypeVar("S", bound=Shard)
R = TypeVar("R")
CreateTopics = Callable[[Sequence[NewTopic]], Awaitable[list[TopicResult]]]  # Works on every broker.


class CoordinatorTopic(NamedTuple):
    """The topic that a coordinator keeps its state in, as it is made when it is first needed."""

    name: str
    partition_count: int
    replication_factor: int  # As many as there are brokers, up to this.
    config: Mapping[str, str]


class CoordinatorRuntime(Generic[S]):
    def __init__(
        self,
        *,
        node_id: NodeId,
        topic: CoordinatorTopic,
        new_shard: Callable[[], S],
        codec: RecordCodec[Any],
        create_topics: CreateTopics,
        partitions: PartitionManager,
        clock: Clock,
        timers: TimerWheel,
        fs: FileSystem,
        on_loaded: Callable[[int, ShardRunner[S]], None] = lambda number, runner: None,
        on_closed: Callable[[int, ShardRunner[S]], None] = lambda number, runner: None,
    ) -> None:
        """`on_loaded` is told of every partition that this broker begins to coordinate, `on_closed` when it ends."""
        self._node_id = node_id
        self._topic = topic
        self._new_shard = new_shard
        self._codec = codec
        self._create_topics = create_topics
        self._partitions = partitions
        self._clock = clock
        self._timers = timers
        self._fs = fs
        self._on_loaded = on_loaded
        self._on_closed = on_closed
        self._image = EMPTY_IMAGE
        self._runners: dict[int, ShardRunner[S]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Everyone who waits is told to look for another coordinator."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for number in list(self._runners):
            self._close(number)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with the coordinator."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_every(self, interval_ms: int, decide: Callable[[S, Now], Decision[Any]], name: str) -> None:
        """Have every shard decide, again and again."""
        self.spawn(self._repeat(interval_ms / 1000, decide), name)

    async def _repeat(self, interval_s: float, decide: Callable[[S, Now], Decision[Any]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for runner in list(self._runners.values()):
                if runner.is_loaded:
                    try:
                        runner.run(partial(decide, runner.shard))
                    except Exception:
                        # A task root. The next pass comes, also for the other partitions.
                        log.exception("coordinator could not decide", topic=self._topic.name)
                await asyncio.sleep(0)

    # Following the image

    def apply(self, image: ClusterImage) -> None:
        """Follow the image; to be called after the partitions have."""
        old, self._image = self._image, image
        if old.topics is not image.topics:
            self.on_roles_changed()

    def on_roles_changed(self) -> None:
        """Coordinate what this broker leads, and nothing else. A new leader epoch is a new beginning."""
        topic = self._image.topics.get(self._topic.name)
        for number, runner in list(self._runners.items()):
            if not runner.is_leading:
                self._close(number)
        for state in topic.partitions if topic is not None else ():
            if state.leader == self._node_id and state.partition not in self._runners:
                self._maybe_open(state.partition)

    def _maybe_open(self, number: int) -> None:
        """Begin to coordinate a partition, unless it cannot be led yet; the next who asks makes us try again."""
        try:
            partition = self._partitions.leader(self._topic.name, number)
        except Refused:
            return
        runner = ShardRunner(
            partition=partition,
            shard=self._new_shard(),
            codec=self._codec,
            clock=self._clock,
            timers=self._timers,
            fs=self._fs,
        )
        self._runners[number] = runner
        self.spawn(self._load(number, runner), f"coordinator load {self._topic.name}-{number}")

    async def _load(self, number: int, runner: ShardRunner[S]) -> None:
        try:
            await runner.load()
        except Exception:
            # A task root. Clients keep hearing that it loads; the reason is in the log.
            log.exception("coordinator could not be loaded", partition=TopicPartition(self._topic.name, number))
        else:
            if runner.is_loaded:
                self._on_loaded(number, runner)

    def _close(self, number: int) -> None:
        runner = self._runners.pop(number)
        runner.close(ErrorCode.not_coordinator)
        self._on_closed(number, runner)

    # Finding

    def partition_for(self, key: str) -> int:
        topic = self._image.topics.get(self._topic.name)
        if topic is None:
            raise Refused(ErrorCode.coordinator_not_available, f"{self._topic.name} does not exist yet")
        return _java_hash(key) % len(topic.partitions)

    async def find(self, key: str) -> BrokerRegistration:
        """The broker that coordinates the key; the topic behind it is made when it is first needed."""
        if self._topic.name not in self._image.topics:
            await self._create_topic()
        number = self.partition_for(key)
        state = self._image.topics[self._topic.name].partitions[number]
        broker = self._image.brokers.get(state.leader)
        if broker is None:
            raise Refused(ErrorCode.coordinator_not_available, "the coordinator's partition has no leader")
        return broker

    async def _create_topic(self) -> None:
        topic = NewTopic(
            name=self._topic.name,
            partition_count=self._topic.partition_count,
            replication_factor=min(self._topic.replication_factor, len(self._image.brokers)),
            config=self._topic.config,
        )
        (result,) = await self._create_topics([topic])
        if result.code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            if result.code is not ErrorCode.not_controller:  # That passes, and every client would add a line.
                log.error("topic of a coordinator could not be made",
                          topic=topic.name, code=result.code.name, why=result.message)  # fmt: skip
            raise Refused(ErrorCode.coordinator_not_available, result.message or "")

    # Commands

    async def call(self, key: str, decide: Callable[[S, Token, Now], Decision[Any]]) -> Response:
        """What the key's shard answers, once it is committed. Refused when this broker cannot answer for it."""
        runner = self.runner(key)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def token(response: Response) -> None:
            if not answer.done():
                answer.set_result(response)

        runner.run(lambda now: decide(runner.shard, token, now))
        return await answer

    def look(self, key: str, view: Callable[[S], R]) -> R:
        """What `view` sees in the key's shard, at once."""
        runner = self.runner(key)
        if not runner.is_loaded:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return view(runner.shard)

    def runner(self, key: str) -> ShardRunner[S]:
        number = self.partition_for(key)
        runner = self._runners.get(number)
        if runner is not None:
            if not runner.may_speak:
                raise Refused(ErrorCode.not_coordinator, "the broker has not heard from the metadata store")
            return runner
        if self._image.topics[self._topic.name].partitions[number].leader != self._node_id:
            raise Refused(ErrorCode.not_coordinator)
        self._maybe_open(number)
        raise Refused(ErrorCode.coordinator_load_in_progress)

    def runners(self) -> Iterator[ShardRunner[S]]:
        """All that this broker coordinates, loaded or not."""
        return iter(list(self._runners.values()))

    def shards(self) -> list[S]:
        """All that this broker coordinates; Refused while one still loads."""
        if not all(runner.is_loaded for runner in self._runners.values()):
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return [runner.shard for runner in self._runners.values()]


@lru_cache(maxsize=4096)  # A tenth of a heartbeat, without it.
def _java_hash(text: str) -> int:
    """Java's String.hashCode without its sign, as Kafka maps keys to partitions."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2], "big")) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == -(2**31) else abs(signed)
