"""Asks the coordinator of a transaction whether it is ongoing here, before the first batch of it is stored (KIP-890).

Producers that add their partitions themselves (Produce below v12) are only asked about; for the others the partition is
added by the same request. Questions for one coordinator go together: while one request is under way, those that come
gather for the next. What is asked for is held by the connections that wait for it, so it is no more than they may have.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import TopicPartition
from penstock.cluster.image import BrokerRegistration
from penstock.coordinator.txn.commands import AddPartitions
from penstock.coordinator.txn.metadata import Producer
from penstock.coordinator.txn.replies import PartitionsReply
from penstock.partition.partition import Partition
from penstock.partition.peers import PeerLost
from penstock.partition.verification_guards import NO_SEQUENCE, VerificationGuard
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

REQUEST_VERSION = 5
TRANSACTION_VERSION = 2  # Of a producer whose partitions its leaders add.
ANSWER_S_MAX = 10.0  # Adding waits for replicas. Who gets no answer is asked to send again.
# A producer whose last transaction is still being ended is a moment early: its markers are on their way.
RETRY_S = 0.005
RETRY_S_MAX = 0.1
QUESTIONS_MAX = 10_000  # For one coordinator: a producer each. Beyond that they are told to send again.

Codes = Mapping[TopicPartition, ErrorCode]


class TxnCoordinatorPort(Protocol):
    """What is needed of the coordinator's own broker, if that is us; and who it is."""

    async def find(self, transactional_id: str) -> BrokerRegistration: ...

    async def add_partitions_in_turn(self, command: AddPartitions) -> PartitionsReply: ...

    async def verify_partitions(self, command: AddPartitions) -> PartitionsReply: ...


class BrokerLinks(Protocol):
    async def ask(self, node_id: int, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct: ...


class TxnVerification:
    def __init__(self, *, node_id: int, coordinator: TxnCoordinatorPort, links: BrokerLinks) -> None:
        self.refused_count = 0  # Partitions that were not found to be in the transaction that they were asked for.
        self._node_id = node_id
        self._coordinator = coordinator
        self._links = links
        self._queues: dict[int, _Questions] = {}  # By coordinator; no more than there have been brokers.

    async def verify(
        self,
        partition: Partition,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        is_added: bool,
        first_sequence: int = NO_SEQUENCE,
    ) -> VerificationGuard | None:
        """The guard for a batch of the transaction; None when it is open here. Refused as the coordinator says.

        `is_added`: the partition becomes a part of the transaction if it is not yet.
        """
        guard = partition.begin_verification(producer_id, producer_epoch, first_sequence, begins_at_zero=is_added)
        if guard is not None:
            wanted = partition.topic_partition
            producer = Producer(producer_id, producer_epoch)
            codes = await self.ask(transactional_id, producer, [wanted], is_added=is_added)
            if codes[wanted] is not ErrorCode.none:
                raise Refused(codes[wanted], f"the coordinator does not know {wanted} to be in the transaction")
        return guard

    async def ask(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition], *, is_added: bool
    ) -> Codes:
        """The coordinator's answer for each partition; NETWORK_EXCEPTION when there is none."""
        question = AddPartitions(
            transactional_id=transactional_id,
            producer=producer,
            partitions=frozenset(partitions),
            client_version=TRANSACTION_VERSION if is_added else 0,
        )
        deadline = asyncio.get_running_loop().time() + RETRY_S_MAX
        while True:
            codes = await self._ask_once(question, is_added)
            is_early = is_added and ErrorCode.concurrent_transactions in codes.values()
            if not is_early or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(RETRY_S)
        self.refused_count += sum(code is not ErrorCode.none for code in codes.values())
        return codes

    async def _ask_once(self, question: AddPartitions, is_added: bool) -> Codes:
        try:
            broker = await self._coordinator.find(question.transactional_id)
            if broker.node_id != self._node_id:
                return await self._queue(broker.node_id).ask(question, is_added)
            local = self._coordinator
            reply = await (local.add_partitions_in_turn(question) if is_added else local.verify_partitions(question))
            return reply.codes
        except Refused as refused:
            return dict.fromkeys(question.partitions, refused.code)

    def _queue(self, node_id: int) -> "_Questions":
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = _Questions(self._links, node_id)
        return queue


class _Key(NamedTuple):
    transactional_id: str
    is_added: bool


@dataclass(slots=True, eq=False)
class _Question:
    producer: Producer
    partitions: set[TopicPartition]
    answer: "asyncio.Future[Codes]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Questions:
    """What is to be asked of one other broker."""

    def __init__(self, links: BrokerLinks, node_id: int) -> None:
        self._links = links
        self._node_id = node_id
        self._waiting: dict[_Key, _Question] = {}
        self._sending: asyncio.Task[None] | None = None

    async def ask(self, wanted: AddPartitions, is_added: bool) -> Codes:
        """Refused when the producer has a newer epoch, or too much is asked already."""
        key = _Key(wanted.transactional_id, is_added)
        question = self._waiting.get(key)
        if question is not None and question.producer != wanted.producer:
            if wanted.producer == (question.producer.producer_id, min(wanted.producer.epoch, question.producer.epoch)):
                raise Refused(ErrorCode.invalid_producer_epoch, "a newer epoch of the producer is asked for")
            question.answer.set_result(dict.fromkeys(question.partitions, ErrorCode.invalid_producer_epoch))
            question = None
        if question is None:
            if len(self._waiting) >= QUESTIONS_MAX:
                raise Refused(ErrorCode.coordinator_not_available, "the coordinator is asked too much")
            question = self._waiting[key] = _Question(wanted.producer, set())
        question.partitions |= wanted.partitions
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all(), name="transaction verification")
        codes = await asyncio.shield(question.answer)  # Others may wait for it, too.
        return {partition: codes[partition] for partition in wanted.partitions}

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                # A request names a transactional id once.
                asked = {key.transactional_id: key for key in reversed(self._waiting)}
                await self._send({key: self._waiting.pop(key) for key in asked.values()})
        finally:
            self._sending = None

    async def _send(self, asked: Mapping[_Key, _Question]) -> None:
        known: dict[str, dict[TopicPartition, ErrorCode]] = {}
        code = ErrorCode.network_exception
        request = Struct(transactions=[_transaction(key, question) for key, question in asked.items()])
        try:
            reply = await self._links.ask(
                self._node_id, ApiKey.ADD_PARTITIONS_TO_TXN, REQUEST_VERSION, request, ANSWER_S_MAX
            )
            code = ErrorCode(reply.error_code) or ErrorCode.network_exception
            known = {result.transactional_id: _codes(result) for result in reply.results_by_transaction}
        except (PeerLost, ValueError):
            pass  # As if it were not answered; ValueError: a code of a version to come.
        finally:
            for key, question in asked.items():
                if not question.answer.done():
                    codes = known.get(key.transactional_id, {})
                    question.answer.set_result({wanted: codes.get(wanted, code) for wanted in question.partitions})


def _transaction(key: _Key, question: _Question) -> Struct:
    topics: dict[str, list[int]] = {}
    for topic, partition in question.partitions:
        topics.setdefault(topic, []).append(partition)
    return Struct(
        transactional_id=key.transactional_id,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.epoch,
        verify_only=not key.is_added,
        topics=[Struct(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def _codes(result: Struct) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, item.partition_index): ErrorCode(item.partition_error_code)
        for topic in result.topic_results
        for item in topic.results_by_partition
    }


# What a producer is told

_TRY_AGAIN = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
ABORTABLE_PRODUCE_VERSION = 11


def produce_error(code: ErrorCode, produce_version: int) -> ErrorCode:
    """What a producer makes sense of: older ones do not try again after a coordinator's error, only after this one."""
    if code in _TRY_AGAIN:
        return ErrorCode.not_enough_replicas
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.cluster_authorization_failed or (
        code is ErrorCode.transaction_abortable and produce_version < ABORTABLE_PRODUCE_VERSION
    ):
        return ErrorCode.invalid_txn_state
    return code
