"""Producers that come and go, ask twice and too late, and a coordinator that dies between any two steps.

Whatever they do: a transaction has one outcome, who was shut out stays out, epochs go up, and what was stored is all
that there is.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.base.errors import ErrorCode
from penstock.coordinator.txn.metadata import Producer, TransactionMetadata
from penstock.coordinator.txn.records import decode
from penstock.coordinator.txn.states import TxnState

from .support import T0, T1, Desk

TIMEOUT_MS = 10_000
NEXT = {
    None: {TxnState.EMPTY},
    TxnState.EMPTY: {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT},
    TxnState.ONGOING: {TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT},
    TxnState.PREPARE_COMMIT: {TxnState.COMPLETE_COMMIT},
    TxnState.PREPARE_ABORT: {TxnState.COMPLETE_ABORT},
    TxnState.COMPLETE_COMMIT: {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT},
    TxnState.COMPLETE_ABORT: {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT},
}


@dataclass
class Client:
    """A process with what it was last told; it may be a zombie and not know."""

    producer: Producer
    version: int
    has_taken_over: bool = False
    told: bool | None = None  # The outcome of its last transaction, as it was told.
    ended_as: Producer | None = None  # Under which it has asked for that.


class Producers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.clients: list[Client] = []
        self.current: Client | None = None  # Whom the transactional id belongs to.
        self.given: set[Producer] = set()
        self.checked = 0  # Records.
        self.last: TransactionMetadata | None = None
        self.epochs: dict[int, int] = {}  # Of each producer id, as its partitions know it.

    def client(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    @rule(version=st.sampled_from([0, 2]), keep=st.booleans(), two_phase=st.booleans())
    def a_new_client_comes(self, version: int, keep: bool, two_phase: bool) -> None:
        before = self.last
        reply = self.desk.init(timeout_ms=TIMEOUT_MS, enable_2pc=two_phase, keep_prepared=keep)
        self.check_log()
        if reply.error_code is ErrorCode.concurrent_transactions:
            if before is not None and before.state is TxnState.ONGOING:
                assert not keep
                self.current = None  # Shut out: its transaction is aborted.
            return
        assert reply.error_code is ErrorCode.none
        assert reply.producer not in self.given
        has_taken_over = reply.ongoing.producer_id != -1
        assert has_taken_over == (before is not None and before.state is TxnState.ONGOING)
        self.taken(Client(reply.producer, version, has_taken_over))

    def taken(self, client: Client) -> None:
        self.given.add(client.producer)
        self.current = client
        self.clients = [*self.clients[-4:], client]

    @rule(number=st.integers(0, 4), is_answer_lost=st.booleans())
    def a_client_wants_a_new_epoch(self, number: int, is_answer_lost: bool) -> None:
        client = self.client(number)
        if client is None or client.has_taken_over:
            return
        was_open = self.last is not None and self.last.state is TxnState.ONGOING
        reply = self.desk.init(client.producer, timeout_ms=TIMEOUT_MS)
        self.check_log()
        if reply.error_code is ErrorCode.none:
            assert client is self.current
            self.given.add(reply.producer)
            if not is_answer_lost:
                client.producer, client.told, client.ended_as = reply.producer, None, None
        elif reply.error_code is ErrorCode.concurrent_transactions and was_open:
            self.current = None

    @rule(number=st.integers(0, 4), both=st.booleans())
    def a_client_writes(self, number: int, both: bool) -> None:
        client = self.client(number)
        if client is None:
            return
        code = self.desk.add(client.producer, *((T0, T1) if both else (T0,)), version=client.version)
        self.check_log()
        if code is ErrorCode.none:
            assert client is self.current
            assert not client.has_taken_over
            client.told = client.ended_as = None

    @rule(number=st.integers(0, 4), is_commit=st.booleans(), is_answer_lost=st.booleans(), asks_again=st.booleans())
    def a_client_ends(self, number: int, is_commit: bool, is_answer_lost: bool, asks_again: bool) -> None:
        client = self.client(number)
        if client is None:
            return
        asks_again = asks_again and client.ended_as is not None
        producer = client.ended_as if asks_again and client.ended_as is not None else client.producer
        before = self.last
        reply = self.desk.end(producer, is_commit=is_commit, version=client.version)
        self.check_log()
        if reply.error_code is not ErrorCode.none:
            return
        assert client is self.current
        assert before is not None
        if before.state is TxnState.ONGOING:
            client.told = None  # Another transaction than the one it was told of.
        if asks_again and client.told is not None:
            assert client.told == is_commit
        if before.state is TxnState.EMPTY:
            assert not is_commit
        self.given.add(reply.producer)
        client.ended_as = producer
        if not is_answer_lost:
            client.told = is_commit
            client.producer = reply.producer
            client.has_taken_over = False

    @rule()
    def the_markers_are_written(self) -> None:
        if "tx" in self.desk.shard.completing:
            self.desk.complete()
            self.check_log()

    @rule(ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.desk.pass_time(ms)
        before = self.last
        if self.desk.carry_out(self.desk.shard.abort_timed_out(self.desk.now)):
            assert before is not None
            assert not before.is_two_phase
            assert self.desk.now.wall_ms - before.start_ms > TIMEOUT_MS
            self.current = None
        self.check_log()

    @rule()
    def the_coordinator_dies(self) -> None:
        before = self.desk.shard
        self.desk.restart()
        assert self.desk.shard.transactions == before.transactions
        assert self.desk.shard.completing == before.completing

    def check_log(self) -> None:
        """What was stored since the last look."""
        for pair in self.desk.log[self.checked :]:
            record = decode(*pair)
            assert isinstance(record, TransactionMetadata)
            last = self.last
            assert record.state in NEXT[None if last is None else last.state]
            known = self.epochs.get(record.producer_id, -1)
            if record.state is TxnState.ONGOING:
                assert record.producer_epoch >= known
                if last is not None and last.state is TxnState.ONGOING:
                    assert record.partitions >= last.partitions
                    assert record.writer == last.writer
                self.epochs[record.producer_id] = record.producer_epoch
            if record.state.is_completing:
                assert last is not None
                assert record.producer_id == last.producer_id
                assert record.partitions == last.partitions
                # What wrote before is refused afterwards, wherever a client may have been replaced.
                assert record.producer_epoch >= known + (record.client_version >= 2 and known >= 0)
                self.epochs[record.producer_id] = record.producer_epoch
            self.last = record
        self.checked = len(self.desk.log)

    @invariant()
    def what_is_known_is_what_was_stored(self) -> None:
        if self.last is not None:
            assert self.desk.shard.transactions == {"tx": self.last}


Producers.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestProducers = Producers.TestCase
