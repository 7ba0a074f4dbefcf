"""A transaction coordinator that knows what a test tells it."""

import asyncio
from collections.abc import Mapping

from penstock.base.errors import ErrorCode
from penstock.base.types import NodeId, TopicPartition
from penstock.cluster.image import BrokerRegistration
from penstock.coordinator.txn.commands import AddPartitions
from penstock.coordinator.txn.replies import PartitionsReply
from penstock.wire.codec import Struct


class FakeCoordinator:
    def __init__(self, node_id: int = 1) -> None:
        self.node_id = NodeId(node_id)
        self.code = ErrorCode.none  # For everything.
        self.ongoing: dict[str, set[TopicPartition]] = {}
        self.asked: list[tuple[str, AddPartitions]] = []
        self.free = asyncio.Event()
        self.free.set()

    async def find(self, transactional_id: str) -> BrokerRegistration:
        return BrokerRegistration(node_id=self.node_id, epoch=1, host="127.0.0.1", port=1, rack=None)

    async def add_partitions_in_turn(self, command: AddPartitions) -> PartitionsReply:
        self.asked.append(("add", command))
        await self.free.wait()
        if self.code is ErrorCode.none:
            self.ongoing.setdefault(command.transactional_id, set()).update(command.partitions)
        return PartitionsReply(codes=self._codes(command))

    async def verify_partitions(self, command: AddPartitions) -> PartitionsReply:
        self.asked.append(("verify", command))
        await self.free.wait()
        return PartitionsReply(codes=self._codes(command))

    def _codes(self, command: AddPartitions) -> Mapping[TopicPartition, ErrorCode]:
        known = self.ongoing.get(command.transactional_id, set())
        return {
            partition: self.code or (ErrorCode.none if partition in known else ErrorCode.transaction_abortable)
            for partition in command.partitions
        }


class FakeLinks:
    """Other brokers, which hold their answers back until they are let go."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int, Struct]] = []
        self.answers: list[asyncio.Future[Struct]] = []

    async def ask(self, node_id: int, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        self.asked.append((node_id, api_key, version, request))
        answer: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer
