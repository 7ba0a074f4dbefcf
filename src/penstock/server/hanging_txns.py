"""Whether an open transaction hangs: its partition waits for an end that no coordinator will ever send.

A partition knows the producer of a transaction, not its transactional id, so every broker is asked; the answer holds
only if all coordinators were to be had and none moved meanwhile. It is asked for by an operator's abort alone.
"""

import asyncio

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_NODE, NodeId, TopicPartition
from penstock.cluster.metadata import Metadata
from penstock.coordinator.txn.views import TxnFilter
from penstock.coordinator.txn_coordinator import TRANSACTION_STATE_TOPIC, TxnCoordinator
from penstock.partition.peers import PeerLost
from penstock.server.api import ApiKey
from penstock.server.links import Links
from penstock.wire.codec import Struct

LIST_VERSION = 0
DESCRIBE_VERSION = 0
ANSWER_S_MAX = 5.0  # Of a broker; it looks into its memory.


class HangingTxns:
    def __init__(self, *, node_id: NodeId, metadata: Metadata, txns: TxnCoordinator, links: Links) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._txns = txns
        self._links = links
        self._one_at_a_time = asyncio.Lock()  # However many a client asks for.

    async def hangs(self, producer_id: int, partition: TopicPartition) -> bool:
        """Of a transaction that is open in the partition. BROKER_NOT_AVAILABLE when that cannot be told now."""
        async with self._one_at_a_time:
            coordinators = self._coordinators()
            try:
                for node_id in sorted({node_id for node_id, _ in coordinators}):
                    if partition in await self._open_partitions(node_id, producer_id):
                        return False
            except PeerLost as error:
                raise Refused(ErrorCode.broker_not_available, str(error)) from error
            if self._coordinators() != coordinators:
                raise Refused(ErrorCode.broker_not_available, "coordinators have moved")
            return True

    def _coordinators(self) -> list[tuple[NodeId, int]]:
        """Leader and leader epoch of each part of the transactions' state."""
        topic = self._metadata.image.topics.get(TRANSACTION_STATE_TOPIC)
        states = topic.partitions if topic is not None else ()
        found = [(state.leader, int(state.leader_epoch)) for state in states]
        if any(leader == NO_NODE for leader, _ in found):
            raise Refused(ErrorCode.broker_not_available, f"a partition of {TRANSACTION_STATE_TOPIC} has no leader")
        return found

    async def _open_partitions(self, node_id: NodeId, producer_id: int) -> set[TopicPartition]:
        """Those that wait for the end of the producer's transaction, as the broker knows."""
        if node_id == self._node_id:
            found = self._txns.listed(TxnFilter(producer_ids={producer_id}))
            return {partition for metadata in found for partition in metadata.partitions}
        asked = Struct(state_filters=[], producer_id_filters=[producer_id])
        listed = await self._links.ask(node_id, ApiKey.LIST_TRANSACTIONS, LIST_VERSION, asked, ANSWER_S_MAX)
        if listed.error_code:
            raise Refused(ErrorCode.broker_not_available, f"broker {node_id} does not know its transactions yet")
        ids = [item.transactional_id for item in listed.transaction_states]
        if not ids:
            return set()
        described = await self._links.ask(
            node_id, ApiKey.DESCRIBE_TRANSACTIONS, DESCRIBE_VERSION, Struct(transactional_ids=ids), ANSWER_S_MAX
        )
        if any(state.error_code for state in described.transaction_states):
            raise Refused(ErrorCode.broker_not_available, "a transaction is not known any more")
        return {
            TopicPartition(topic.topic, index)
            for state in described.transaction_states
            for topic in state.topics
            for index in topic.partitions
        }
