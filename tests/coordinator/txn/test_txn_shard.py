"""Partitions of a transaction, timeouts, expiry, listing."""

from penstock.base.errors import ErrorCode
from penstock.coordinator.decision import Now
from penstock.coordinator.txn.commands import AddPartitions
from penstock.coordinator.txn.metadata import Producer, TransactionDeleted
from penstock.coordinator.txn.states import BY_TITLE, TxnState
from penstock.coordinator.txn.views import TxnFilter

from .support import T0, T1, WALL_MS, Desk


def test_partitions_are_added_once() -> None:
    desk = Desk()
    producer = desk.init().producer
    assert desk.add(producer, T0) is ErrorCode.none
    assert desk.found().start_ms == WALL_MS
    stored = len(desk.log)
    desk.pass_time(5)
    assert desk.add(producer, T0) is ErrorCode.none
    assert len(desk.log) == stored
    assert desk.add(producer, T1) is ErrorCode.none
    assert (desk.found().partitions, desk.found().start_ms) == ({T0, T1}, WALL_MS)


def test_partitions_are_refused_to_who_does_not_hold_the_id() -> None:
    desk = Desk()
    assert desk.add(Producer(1000, 0)) is ErrorCode.invalid_producer_id_mapping
    producer = desk.init().producer
    assert desk.add(Producer(5, 0)) is ErrorCode.invalid_producer_id_mapping
    assert desk.add(Producer(1000, 7)) is ErrorCode.producer_fenced
    desk.add(producer)
    desk.end(producer, is_commit=True)
    assert desk.add(producer) is ErrorCode.concurrent_transactions


def test_a_leader_asks_whether_a_transaction_is_open() -> None:
    desk = Desk()
    assert desk.verify(Producer(1000, 0)) == {T0: ErrorCode.invalid_producer_id_mapping}
    producer = desk.init().producer
    assert desk.verify(producer) == {T0: ErrorCode.transaction_abortable}
    desk.add(producer, T0)
    assert desk.verify(producer, T0, T1) == {T0: ErrorCode.none, T1: ErrorCode.transaction_abortable}
    assert desk.verify(Producer(1000, 3)) == {T0: ErrorCode.producer_fenced}
    assert desk.verify(Producer(1, 0)) == {T0: ErrorCode.invalid_producer_id_mapping}
    desk.end(producer, is_commit=True)
    assert desk.verify(producer) == {T0: ErrorCode.concurrent_transactions}
    desk.complete()
    assert desk.verify(producer) == {T0: ErrorCode.transaction_abortable}


# Time


def timed_out(desk: Desk) -> list[str]:
    return [record.transactional_id for record in desk.carry_out(desk.shard.abort_timed_out(desk.now))]


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_shut_out() -> None:
    desk = Desk()
    producer = desk.init(timeout_ms=10_000).producer
    desk.pass_time(60_000)
    assert timed_out(desk) == []  # Nothing is open.
    desk.add(producer, T0)
    desk.pass_time(9_000)
    desk.add(producer, T1)
    assert timed_out(desk) == []
    desk.pass_time(1_001)
    assert timed_out(desk) == ["tx"]
    assert (desk.found().state, desk.found().writer) == (TxnState.PREPARE_ABORT, Producer(1000, 1))
    assert timed_out(desk) == []
    desk.complete()
    assert desk.add(producer) is ErrorCode.producer_fenced
    assert desk.end(producer, is_commit=True).error_code is ErrorCode.producer_fenced


def test_a_coordinator_that_takes_over_goes_on_counting() -> None:
    desk = Desk()
    desk.add(desk.init(timeout_ms=10_000).producer)
    desk.pass_time(6_000)
    desk.restart()
    desk.pass_time(3_999)
    assert timed_out(desk) == []
    desk.pass_time(2)
    assert timed_out(desk) == ["tx"]


def test_a_clock_that_is_set_ends_nothing() -> None:
    desk = Desk()
    desk.add(desk.init(timeout_ms=10_000).producer)
    desk.now = Now(desk.now.timer_ms, desk.now.wall_ms + 10**10)
    assert timed_out(desk) == []
    desk.now = Now(desk.now.timer_ms, desk.now.wall_ms - 2 * 10**10)
    desk.restart()  # Begun in the future: no reason to wait longer than its timeout.
    desk.pass_time(10_001)
    assert timed_out(desk) == ["tx"]


def test_an_id_that_nobody_uses_goes_after_a_week() -> None:
    desk = Desk()
    producer = desk.init(transactional_id="idle").producer
    busy = desk.init(enable_2pc=True, transactional_id="busy").producer
    desk.add(busy, transactional_id="busy")
    assert desk.carry_out(desk.shard.expire(desk.now)) == []
    desk.pass_time(604_800_000)
    assert desk.carry_out(desk.shard.expire(desk.now)) == [TransactionDeleted(transactional_id="idle")]
    assert list(desk.shard.transactions) == ["busy"]
    assert desk.add(producer, transactional_id="idle") is ErrorCode.invalid_producer_id_mapping
    desk.restart()
    assert list(desk.shard.transactions) == ["busy"]


def test_ids_do_not_go_because_a_clock_was_set() -> None:
    desk = Desk()
    desk.init()
    desk.shard.expire(desk.now)
    desk.now = Now(desk.now.timer_ms + 1, desk.now.wall_ms + 10**10)
    assert desk.shard.expire(desk.now).records == []
    assert len(desk.shard.expire(desk.now).records) == 1  # It stays there.


def test_an_append_that_fails_changes_nothing() -> None:
    desk = Desk()
    producer = desk.init().producer
    command = AddPartitions(transactional_id="tx", producer=producer, partitions=frozenset({T0}))
    decision = desk.shard.add_partitions(command, desk, desk.now)
    failed = desk.shard.on_append_failed(decision, ErrorCode.not_leader_or_follower, desk.now)
    ((_, reply),) = failed.replies_now
    assert reply == decision.replies_on_commit[0].response.failed(ErrorCode.not_coordinator)
    assert desk.found().state is TxnState.EMPTY
    desk.pass_time(60_001)
    assert timed_out(desk) == []


# Listing


def test_transactions_are_listed_by_what_they_are() -> None:
    desk = Desk()
    idle = desk.init(transactional_id="idle").producer
    producer = desk.init(transactional_id="busy").producer
    desk.add(producer, transactional_id="busy")
    desk.pass_time(1_000)

    def listed(wanted: TxnFilter) -> list[str]:
        return sorted(found.transactional_id for found in desk.shard.listed(wanted, desk.now.wall_ms))

    assert listed(TxnFilter()) == ["busy", "idle"]
    assert listed(TxnFilter(states={TxnState.ONGOING})) == ["busy"]
    assert listed(TxnFilter(states=set())) == []
    assert listed(TxnFilter(producer_ids={idle.producer_id})) == ["idle"]
    assert listed(TxnFilter(states={TxnState.ONGOING}, duration_ms=999)) == ["busy"]
    assert listed(TxnFilter(states={TxnState.ONGOING}, duration_ms=1_000)) == []
    assert listed(TxnFilter(matches_id=lambda text: text.startswith("i"))) == ["idle"]


def test_states_are_called_as_kafka_calls_them() -> None:
    assert list(BY_TITLE) == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
