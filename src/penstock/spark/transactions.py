"""Kafka's transactions as far as an exactly-once sink needs them, asked of their coordinators.

The older half of the protocol, in which a producer names its partitions itself and keeps its epoch: so a transaction
that one process wrote can be ended by another that knows its producer id and epoch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from penstock.base.errors import ErrorCode
from penstock.spark.brokers import RETRIABLE, Address, Brokers, Refusal, TryAgain
from penstock.spark.plan import TopicPartition
from penstock.wire.codec import Struct

FIND_COORDINATOR, FIND_COORDINATOR_VERSION = 10, 2
OFFSET_FETCH, OFFSET_FETCH_VERSION = 9, 7
INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION = 22, 6
ADD_PARTITIONS_TO_TXN, ADD_PARTITIONS_VERSION = 24, 3
ADD_OFFSETS_TO_TXN, ADD_OFFSETS_VERSION = 25, 3
END_TXN, END_TXN_VERSION = 26, 3
TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION = 28, 3
DESCRIBE_TRANSACTIONS, DESCRIBE_TRANSACTIONS_VERSION = 65, 0
LIST_TRANSACTIONS, LIST_TRANSACTIONS_VERSION = 66, 0

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1  # Kinds of coordinators.
NO_PRODUCER_ID = -1

_UNSTABLE = ErrorCode.unstable_offset_commit


class Transaction(NamedTuple):
    """Who may write into it, and end it."""

    transactional_id: str | None
    producer_id: int
    epoch: int


class Kept(NamedTuple):
    """A transaction that was taken over, and whether there is anything in it to end."""

    transaction: Transaction
    is_open: bool


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str


class Transactions:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._coordinators: dict[tuple[int, str], Address] = {}

    def begin(
        self, transactional_id: str | None, *, timeout_ms: int = 60_000, is_two_phase: bool = False
    ) -> Transaction:
        """Take the id over: whoever had it is shut out, and what is open is aborted.

        `is_two_phase` (KIP-939): the transaction stays open until somebody ends it.
        """
        return self._init(transactional_id, timeout_ms, is_two_phase, keeps=False).transaction

    def take_over(self, transactional_id: str) -> Kept:
        """Take a two-phase transaction over as it is, to end it; whoever had it is shut out."""
        return self._init(transactional_id, 0, True, keeps=True)

    def add_partitions(self, transaction: Transaction, partitions: Iterable[TopicPartition]) -> None:
        topics = defaultdict(list)
        for topic, partition in sorted(partitions):
            topics[topic].append(partition)
        request = Struct(
            v3_and_below_transactional_id=transaction.transactional_id,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.epoch,
            v3_and_below_topics=[Struct(name=name, partitions=numbers) for name, numbers in topics.items()],
        )

        def check(reply: Struct) -> None:
            for topic in reply.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    _check(result.partition_error_code, f"open {transaction.transactional_id}")

        self._ask(transaction, ADD_PARTITIONS_TO_TXN, ADD_PARTITIONS_VERSION, request, check)

    def end(self, transaction: Transaction, *, is_commit: bool) -> None:
        """Return when that is decided for good. The same again does no harm."""
        request = Struct(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            committed=is_commit,
        )
        what = f"{'commit' if is_commit else 'abort'} {transaction.transactional_id}"
        self._ask(transaction, END_TXN, END_TXN_VERSION, request, lambda reply: _check(reply.error_code, what))

    def commit_offset(
        self, transaction: Transaction, group: str, partition: TopicPartition, committed: CommittedOffset
    ) -> None:
        """Put an offset of `group` into the transaction."""
        what = f"note in {group}"
        self._ask(
            transaction,
            ADD_OFFSETS_TO_TXN,
            ADD_OFFSETS_VERSION,
            Struct(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                group_id=group,
            ),
            lambda reply: _check(reply.error_code, what),
        )
        topic, number = partition
        request = Struct(
            transactional_id=transaction.transactional_id,
            group_id=group,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                Struct(
                    name=topic,
                    partitions=[
                        Struct(
                            partition_index=number,
                            committed_offset=committed.offset,
                            committed_leader_epoch=-1,
                            committed_metadata=committed.metadata,
                        )
                    ],
                )
            ],
        )

        def step() -> None:
            connection = self._brokers.at(self._coordinator(GROUP, group))
            reply = connection.ask(TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION, request)
            for answer in reply.topics:
                for part in answer.partitions:
                    _check(part.error_code, what)

        self._persist(step, what)

    def committed_offsets(self, group: str) -> list[CommittedOffset]:
        """All offsets of `group`, once no open transaction can change them any more."""
        request = Struct(group_id=group, topics=None, require_stable=True)

        def step() -> list[CommittedOffset]:
            connection = self._brokers.at(self._coordinator(GROUP, group))
            reply = connection.ask(OFFSET_FETCH, OFFSET_FETCH_VERSION, request)
            _check(reply.error_code, f"look up {group}")
            found = []
            for topic in reply.topics:
                for part in topic.partitions:
                    _check(part.error_code, f"look up {group}")
                    if part.committed_offset >= 0:
                        found.append(CommittedOffset(part.committed_offset, part.metadata or ""))
            return found

        return self._persist(step, f"look up {group}")

    def open_ids(self, prefix: str) -> list[str]:
        """The ids that begin so and have an open transaction, at whatever coordinator."""
        request = Struct(state_filters=["Ongoing"], producer_id_filters=[])

        def step() -> list[str]:
            found = []
            for address in self._brokers.addresses():
                reply = self._brokers.at(address).ask(LIST_TRANSACTIONS, LIST_TRANSACTIONS_VERSION, request)
                _check(reply.error_code, "list transactions")
                found += [each.transactional_id for each in reply.transaction_states]
            return sorted(each for each in found if each.startswith(prefix))

        return self._persist(step, "list transactions")

    def is_open(self, transaction: Transaction) -> bool:
        """Whether it is still open, and still this producer's."""
        name = transaction.transactional_id
        assert name is not None

        def step() -> bool:
            connection = self._brokers.at(self._coordinator(TRANSACTION, name))
            request = Struct(transactional_ids=[name])
            (found,) = connection.ask(DESCRIBE_TRANSACTIONS, DESCRIBE_TRANSACTIONS_VERSION, request).transaction_states
            _check(found.error_code, f"look at {name}")
            holder = (found.producer_id, found.producer_epoch)
            return found.transaction_state == "Ongoing" and holder == (transaction.producer_id, transaction.epoch)

        return self._persist(step, f"look at {name}")

    def _init(self, transactional_id: str | None, timeout_ms: int, is_two_phase: bool, *, keeps: bool) -> Kept:
        request = Struct(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            enable2_pc=is_two_phase,
            keep_prepared_txn=keeps,
        )

        def step() -> Kept:
            if transactional_id is None:
                connection = self._brokers.any()
            else:
                connection = self._brokers.at(self._coordinator(TRANSACTION, transactional_id))
            reply = connection.ask(INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, request)
            _check(reply.error_code, f"open {transactional_id or 'a producer'}")
            return Kept(
                Transaction(transactional_id, reply.producer_id, reply.producer_epoch),
                reply.ongoing_txn_producer_id != NO_PRODUCER_ID,
            )

        return self._persist(step, f"open {transactional_id or 'a producer'}")

    def _ask(
        self, transaction: Transaction, api_key: int, version: int, request: Struct, check: Callable[[Struct], None]
    ) -> None:
        transactional_id = transaction.transactional_id
        assert transactional_id is not None

        def step() -> None:
            check(self._brokers.at(self._coordinator(TRANSACTION, transactional_id)).ask(api_key, version, request))

        self._persist(step, transactional_id)

    def _persist(self, step: Callable[[], T], what: str) -> T:
        def fresh() -> T:
            try:
                return step()
            except Exception:
                self._coordinators.clear()  # It may have moved.
                raise

        return self._brokers.persist(fresh, what)

    def _coordinator(self, kind: int, key: str) -> Address:
        if (kind, key) not in self._coordinators:
            request = Struct(key=key, key_type=kind)
            reply = self._brokers.any().ask(FIND_COORDINATOR, FIND_COORDINATOR_VERSION, request)
            _check(reply.error_code, f"find the coordinator of {key}")
            self._coordinators[kind, key] = (reply.host, reply.port)
        return self._coordinators[kind, key]


def _check(error_code: int, what: str) -> None:
    if error_code in RETRIABLE or error_code == _UNSTABLE:
        raise TryAgain(f"{what}: {ErrorCode(error_code).name}")
    if error_code:
        raise Refusal(error_code, what)
