"""AlterPartition, as a leader asks it: of the controller, be that another broker or this one."""

from collections.abc import Sequence
from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NodeId
from penstock.cluster.alter_partition_plan import AlterPartition
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import Metadata
from penstock.partition.isr_changes import WantedIsr
from penstock.partition.peers import PeerLost
from penstock.server.api import ApiKey
from penstock.server.peers import Peers
from penstock.wire.codec import Struct

VERSION = 3
REPLY_S_MAX = 10.0
RECOVERED = 0


class IsrRequests:
    def __init__(self, *, node_id: NodeId, metadata: Metadata, controller: Controller, peers: Peers) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._controller = controller
        self._peers = peers

    async def ask(self, wanted: Sequence[WantedIsr]) -> list[ErrorCode]:
        """The controller's answer to each. PeerLost when nobody can say what has become of them."""
        image = self._metadata.image
        own = image.brokers.get(self._node_id)
        if own is None:
            raise PeerLost("this broker is not registered")
        changes = [_change(item, self._node_id, own.epoch) for item in wanted]
        if image.controller_id == self._node_id:
            return await self._decide(own.epoch, changes)
        return await self._ask_remote(own.epoch, changes)

    async def _decide(self, epoch: int, changes: list[AlterPartition]) -> list[ErrorCode]:
        try:
            return [result.code for result in await self._controller.alter_partitions(self._node_id, epoch, changes)]
        except Refused as refused:
            return [refused.code] * len(changes)

    async def _ask_remote(self, epoch: int, changes: list[AlterPartition]) -> list[ErrorCode]:
        by_topic: dict[UUID, list[AlterPartition]] = {}
        for change in changes:
            by_topic.setdefault(change.topic_id, []).append(change)
        request = Struct(
            broker_id=self._node_id,
            broker_epoch=epoch,
            topics=[
                Struct(topic_id=topic_id, partitions=[_partition(change) for change in of_topic])
                for topic_id, of_topic in by_topic.items()
            ],
        )
        reply = await self._peers.ask_controller(ApiKey.ALTER_PARTITION, VERSION, request, REPLY_S_MAX)
        if reply.error_code:
            return [ErrorCode(reply.error_code)] * len(changes)
        codes = {
            (topic.topic_id, item.partition_index): ErrorCode(item.error_code)
            for topic in reply.topics
            for item in topic.partitions
        }
        missing = ErrorCode.unknown_server_error
        return [codes.get((change.topic_id, change.partition), missing) for change in changes]


def _change(item: WantedIsr, node_id: NodeId, own_epoch: int) -> AlterPartition:
    epochs = {**item.change.broker_epochs, node_id: own_epoch}
    return AlterPartition(
        topic_id=item.partition.topic_id,
        partition=item.partition.topic_partition.partition,
        leader_epoch=item.change.leader_epoch,
        partition_epoch=item.change.partition_epoch,
        isr=[(member, epochs[member]) for member in sorted(item.change.isr)],
    )


def _partition(change: AlterPartition) -> Struct:
    return Struct(
        partition_index=change.partition,
        leader_epoch=change.leader_epoch,
        new_isr_with_epochs=[Struct(broker_id=node_id, broker_epoch=epoch) for node_id, epoch in change.isr],
        leader_recovery_state=RECOVERED,
        partition_epoch=change.partition_epoch,
    )
