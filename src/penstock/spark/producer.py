"""Writes rows to partitions: one producer of Kafka's, idempotent or transactional, for one task.

One round of requests at a time, each partition's batch behind its last one; what is not answered is sent again under
the same sequence numbers, which brokers know.
"""

from collections import defaultdict
from typing import NamedTuple

from penstock.base.errors import ErrorCode
from penstock.spark.brokers import RETRIABLE, Brokers, Refusal, TryAgain
from penstock.spark.encode import Rows, encode, pieces
from penstock.spark.plan import TopicPartition
from penstock.spark.transactions import Transaction, Transactions
from penstock.wire.codec import Struct
from penstock.wire.compression import Codec

PRODUCE, PRODUCE_VERSION = 0, 8
PRODUCE_TIMEOUT_MS = 30_000
ALL = -1
SEQUENCES = 1 << 31  # Sequence numbers go around.


class Sent(NamedTuple):
    sequence: int
    batch: bytearray
    records_count: int


class Producer:
    def __init__(self, brokers: Brokers, transaction: Transaction, *, codec: Codec) -> None:
        """`transaction` without an id is that of a producer that is only idempotent."""
        self._brokers = brokers
        self._transaction = transaction
        self._transactions = Transactions(brokers)
        self._codec = codec
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        self.first_partition: TopicPartition | None = None  # That was written to.
        self.records_count = 0

    def write(self, rows: dict[TopicPartition, Rows]) -> None:
        """Return when all rows are stored."""
        waiting = {key: list(pieces(mine)) for key, mine in rows.items()}
        self._join(waiting.keys() - self._sequences.keys())
        while waiting:
            self._send({key: self._encoded(key, parts.pop(0)) for key, parts in waiting.items()})
            waiting = {key: parts for key, parts in waiting.items() if parts}

    def _join(self, partitions: set[TopicPartition]) -> None:
        if partitions and self._transaction.transactional_id:
            self._transactions.add_partitions(self._transaction, partitions)
        if partitions and self.first_partition is None:
            self.first_partition = min(partitions)

    def _encoded(self, key: TopicPartition, part: Rows) -> Sent:
        sequence = self._sequences[key]
        self._sequences[key] = (sequence + len(part.keys)) % SEQUENCES
        batch = encode(
            part,
            codec=self._codec,
            producer_id=self._transaction.producer_id,
            epoch=self._transaction.epoch,
            sequence=sequence,
            is_transactional=bool(self._transaction.transactional_id),
        )
        return Sent(sequence, batch, len(part.keys))

    def _send(self, batches: dict[TopicPartition, Sent]) -> None:
        open_ = dict(batches)

        def step() -> None:
            by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
            for key in open_:
                by_leader[self._brokers.leader_id(*key)].append(key)
            for keys in by_leader.values():
                request = self._request({key: open_[key] for key in keys})
                reply = self._brokers.leader(*keys[0]).ask(PRODUCE, PRODUCE_VERSION, request)
                for topic in reply.responses:
                    for part in topic.partition_responses:
                        self._check(part.error_code, topic.name, part.index)
                        open_.pop((topic.name, part.index), None)
            if open_:
                raise TryAgain(f"{len(open_)} partitions did not answer")

        self._brokers.persist(step, "write")
        self.records_count += sum(sent.records_count for sent in batches.values())

    def _check(self, error_code: int, topic: str, partition: int) -> None:
        if error_code in RETRIABLE:
            raise TryAgain(f"{topic}-{partition}: {ErrorCode(error_code).name}")
        # It is there, and was acknowledged to a connection that broke.
        if error_code not in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            raise Refusal(error_code, f"write to {topic}-{partition}")

    def _request(self, batches: dict[TopicPartition, Sent]) -> Struct:
        topics: dict[str, list[Struct]] = defaultdict(list)
        for (topic, partition), sent in batches.items():
            topics[topic].append(Struct(index=partition, records=bytes(sent.batch)))
        return Struct(
            transactional_id=self._transaction.transactional_id,
            acks=ALL,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[Struct(name=name, partition_data=parts) for name, parts in topics.items()],
        )
