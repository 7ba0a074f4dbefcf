"""A machine with one broker on it: what survives a crash (disk, metadata store) and what does not (the broker)."""

import asyncio
from collections.abc import Callable
from random import Random

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.cluster.store.base import MetadataStore
from penstock.cluster.store.memory import MemoryStore
from penstock.server.broker import Broker
from penstock.sim.clock import SimClock, SimLoop
from penstock.sim.disk import SimDisk
from penstock.sim.file_system import SimFileSystem
from penstock.sim.inode import SECTOR_BYTES
from penstock.sim.network import SimNetwork
from penstock.sim.process import Process
from penstock.sim.trace import Trace
from penstock.storage.direct_file import BLOCK_BYTES

# Size of the journal, and of its blocks where it is written directly, for seeds in turn: so small that it is full now
# and then after a few dozen records. Real blocks are larger than what a disk writes as a whole.
JOURNALS = ((0, SECTOR_BYTES), (32 << 10, BLOCK_BYTES), (0, SECTOR_BYTES), (8 << 10, SECTOR_BYTES))


class Machine:
    def __init__(
        self,
        *,
        loop: SimLoop,
        seed: int,
        trace: Trace,
        network: SimNetwork,
        config: BrokerConfig,
        name: str = "",
        open_store: Callable[[Clock, Random], MetadataStore] | None = None,
    ) -> None:
        """A machine of a cluster has a name, and a client of the cluster's store in each life of its broker."""
        self.name = name
        self.clock = SimClock(loop)
        self.disk = SimDisk(random=Random(f"disk-{name}{seed}"), clock=self.clock, trace=trace)
        self.disk.on_power_cut = self.cut_power
        self.store = MemoryStore()
        self.lives = 0
        self.is_serving = False  # The broker has started and was not told to stop; it may have died since.
        self._open_store = open_store
        self._loop = loop
        self._seed = seed
        self._trace = trace
        self._network = network
        journal_bytes, self._block_bytes = JOURNALS[seed % len(JOURNALS)]
        self._config = config._replace(penstock_journal_bytes=journal_bytes)
        self._process: Process | None = None
        self._broker: Broker | None = None

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def process(self) -> Process:
        """Of the present broker, or the last."""
        assert self._process is not None
        return self._process

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    async def start(self) -> None:
        """Start a broker on what the last one left. Killed when the power goes meanwhile."""
        assert not self.is_up
        self.lives += 1
        self.is_serving = False
        self._trace.add("start", self.name, self.lives)
        process = self._process = Process(self._loop, f"broker-{self.name}{self.lives}", self.name)
        broker = self._broker = process.context.run(self._make_broker)
        await process.call(broker.start())
        self.is_serving = True
        self._trace.add("started", self.name, self.lives)

    async def stop(self) -> None:
        """Stop the broker as an operator would. Killed when the power goes meanwhile."""
        assert self._process is not None and self._broker is not None
        self._trace.add("stop", self.name, self.lives)
        self.is_serving = False
        await self._process.call(self._broker.stop())
        self._end()

    def kill(self) -> None:
        """End the process as `kill -9` does: what it wrote is still in the page cache."""
        self._trace.add("kill", self.name, self.lives)
        self._end()

    def cut_power(self) -> None:
        self._trace.add("cut power", self.name, self.lives)
        self._end()
        self.disk.crash()

    async def wait_dead(self) -> None:
        await self.process.wait_dead()

    async def wait_down(self, timeout_s: float) -> bool:
        """Whether the broker died by itself within the time."""
        assert self._process is not None
        try:
            await asyncio.wait_for(self._process.wait_dead(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _end(self) -> None:
        assert self._process is not None
        self._process.kill()
        self.store.expire_leases()

    def _make_broker(self) -> Broker:
        random = Random(f"broker-{self.name}{self._seed}-{self.lives}")
        return Broker(
            config=self._config,
            fs=SimFileSystem(self.disk, self._block_bytes),
            clock=self.clock,
            network=self._network,
            store=self.store if self._open_store is None else self._open_store(self.clock, random),
            random=random,
        )
