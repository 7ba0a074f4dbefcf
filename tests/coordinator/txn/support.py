"""A shard at work without a shell: what it decides is in the log at once."""

from itertools import count
from typing import TypeVar

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.coordinator.txn.commands import AddPartitions, EndTxn, InitProducerId
from penstock.coordinator.txn.decision import Decision, Now, ProducerIdNeeded
from penstock.coordinator.txn.metadata import Producer, TransactionMetadata, TxnRecord
from penstock.coordinator.txn.records import decode, encode
from penstock.coordinator.txn.replies import PartitionsReply, ProducerReply
from penstock.coordinator.txn.txn_config import DEFAULT_TXN_CONFIG, TxnConfig
from penstock.coordinator.txn.txn_shard import TxnShard

WALL_MS = 1_700_000_000_000
T = TypeVar("T")
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class Desk:
    def __init__(self, config: TxnConfig = DEFAULT_TXN_CONFIG) -> None:
        self.config = config
        self.shard = TxnShard(config)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now = Now(1_000_000, WALL_MS)
        self.ids = count(1000)

    def pass_time(self, ms: int) -> None:
        self.now = Now(self.now.timer_ms + ms, self.now.wall_ms + ms)

    def restart(self) -> None:
        """Another coordinator takes over, with nothing but the log."""
        self.shard = TxnShard(self.config)
        for pair in self.log:
            record = decode(*pair)
            assert record is not None
            self.shard.apply(record)
        assert self.carry_out(self.shard.on_loaded(self.now)) == []

    def carry_out(self, decision: Decision) -> list[TxnRecord]:
        assert decision.replies_now == []
        for record in decision.records:
            self.log.append(encode(record))
            self.shard.apply(record)
        return decision.records

    def carry_out_record(self, record: TxnRecord) -> None:
        self.carry_out(Decision(records=[record]))

    def found(self, transactional_id: str = "tx") -> TransactionMetadata:
        return self.shard.transactions[transactional_id]

    def init(
        self,
        expected: Producer | None = None,
        *,
        timeout_ms: int = 60_000,
        enable_2pc: bool = False,
        keep_prepared: bool = False,
        transactional_id: str = "tx",
    ) -> ProducerReply:
        command = InitProducerId(
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            expected=expected,
            enable_2pc=enable_2pc,
            keep_prepared=keep_prepared,
        )
        try:
            decision = self.shard.init_producer_id(command, None, self, self.now)
        except ProducerIdNeeded:
            decision = self.shard.init_producer_id(command, next(self.ids), self, self.now)
        return self._answer(decision, ProducerReply)

    def add(
        self, producer: Producer, *partitions: TopicPartition, version: int = 0, transactional_id: str = "tx"
    ) -> ErrorCode:
        command = AddPartitions(
            transactional_id=transactional_id,
            producer=producer,
            partitions=frozenset(partitions or (T0,)),
            client_version=version,
        )
        codes = self._answer(self.shard.add_partitions(command, self, self.now), PartitionsReply).codes
        (code,) = set(codes.values())
        return code

    def verify(self, producer: Producer, *partitions: TopicPartition) -> dict[TopicPartition, ErrorCode]:
        command = AddPartitions(transactional_id="tx", producer=producer, partitions=frozenset(partitions or (T0,)))
        return dict(self._answer(self.shard.verify_partitions(command, self), PartitionsReply).codes)

    def end(
        self, producer: Producer, *, is_commit: bool, version: int = 0, transactional_id: str = "tx"
    ) -> ProducerReply:
        command = EndTxn(
            transactional_id=transactional_id, producer=producer, is_commit=is_commit, client_version=version
        )
        try:
            decision = self.shard.end(command, None, self, self.now)
        except ProducerIdNeeded:
            decision = self.shard.end(command, next(self.ids), self, self.now)
        return self._answer(decision, ProducerReply)

    def complete(self, transactional_id: str = "tx") -> TransactionMetadata:
        """The markers of what is ending are written."""
        self.carry_out(self.shard.complete(self.shard.completing[transactional_id], self.now))
        return self.found(transactional_id)

    def _answer(self, decision: Decision, kind: type[T]) -> T:
        self.carry_out(decision)
        ((token, response),) = decision.replies_on_commit
        assert token is self
        assert isinstance(response, kind)
        return response
