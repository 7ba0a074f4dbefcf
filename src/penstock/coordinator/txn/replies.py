"""What the coordinator of a transactional id answers."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.coordinator.txn.metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer

NOBODY = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class ProducerReply(NamedTuple):
    """To InitProducerId, and to EndTxn, which from v5 on gives a new epoch."""

    error_code: ErrorCode = ErrorCode.none
    producer: Producer = NOBODY
    ongoing: Producer = NOBODY  # Whose transaction was kept.

    def failed(self, code: ErrorCode) -> "ProducerReply":
        return ProducerReply(error_code=code)


class PartitionsReply(NamedTuple):
    """To AddPartitionsToTxn, also when it only asks: one answer for each partition."""

    codes: Mapping[TopicPartition, ErrorCode]

    def failed(self, code: ErrorCode) -> "PartitionsReply":
        return self._replace(codes=dict.fromkeys(self.codes, code))
