"""What is asked of the coordinator of a transactional id."""

from typing import NamedTuple

from penstock.base.types import TopicPartition
from penstock.coordinator.txn.metadata import Producer


class InitProducerId(NamedTuple):
    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None  # Who the client says it is (KIP-360); None: somebody new.
    enable_2pc: bool = False
    keep_prepared: bool = False


class AddPartitions(NamedTuple):
    transactional_id: str
    producer: Producer
    partitions: frozenset[TopicPartition]
    client_version: int = 0  # transaction.version of the producer.


class EndTxn(NamedTuple):
    transactional_id: str
    producer: Producer
    is_commit: bool
    client_version: int = 0
