"""The parts of an embedded broker, and the calls that tests make into it. Everything here runs on its event loop."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import SystemRandom

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.cluster.controller import Controller
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.topic_plan import DeleteTopic, NewTopic, TopicResult
from penstock.server.broker import Broker
from penstock.server.network import SocketNetwork
from penstock.storage.disk_threads import DiskThreads
from penstock.testing.disk import CountingDisk
from penstock.testing.settings import Setting, as_text, broker_properties
from penstock.testing.virtual_time import VirtualTime

DISK_THREADS = 4  # A test has a few partitions; more threads would only take longer to end.


class Calls:
    """What a test may ask of a running broker."""

    def __init__(self, *, broker: Broker, controller: Controller, clock: VirtualTime, disk: CountingDisk) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.address = f"{broker.config.host}:{broker.listener.port}"
        self._controller = controller
        self._metadata = broker.metadata
        self._clock = clock
        self._disk = disk

    def stop(self) -> None:
        """Have the broker stop. From any thread."""
        self.loop.call_soon_threadsafe(self.stopping.set)

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, Setting]) -> None:
        texts = {key: as_text(value) for key, value in config.items()}
        topic = NewTopic(name=name, partition_count=partitions, replication_factor=1, config=texts)
        _check("create", name, await self._controller.create_topics([topic]))

    async def delete_topic(self, name: str) -> None:
        _check("delete", name, await self._controller.delete_topics([DeleteTopic(name)]))

    async def topics(self) -> list[str]:
        return sorted(name for name in self._metadata.image.topics if not name.startswith("__"))

    async def advance(self, seconds: float) -> None:
        await self._clock.advance(seconds, is_busy=lambda: self._disk.running > 0)


@asynccontextmanager
async def running_broker(
    settings: Mapping[str, Setting], durability: str, data_dir: str, clock: VirtualTime
) -> AsyncIterator[Calls]:
    """A broker that serves meanwhile, as `server/broker.py` puts it together, but with its metadata in memory."""
    config = BrokerConfig.load(broker_properties(settings, data_dir=data_dir, durability=durability))
    store = MemoryStore()
    with DiskThreads(count_max=DISK_THREADS, name="penstock disk") as threads:
        disk = CountingDisk(threads)
        broker = Broker(
            config=config,
            fs=disk,
            clock=clock,
            network=SocketNetwork(),
            store=store,
            random=SystemRandom(),
        )
        await broker.start()
        try:
            # A second controller beside the broker's own: every write is a compare-and-set, so the two do not mind.
            controller = Controller(store=store, metadata=broker.metadata, config=config)
            yield Calls(broker=broker, controller=controller, clock=clock, disk=disk)
        finally:
            await broker.stop()


def _check(verb: str, name: str, results: list[TopicResult]) -> None:
    for result in results:
        if result.code is not ErrorCode.none:
            reason = result.message or result.code.name.replace("_", " ")
            raise ValueError(f"Cannot {verb} the topic {name!r}: {reason}.")
