"""InitProducerId: who holds a transactional id, and who is shut out."""

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.txn.metadata import NO_TIMEOUT_MS, Producer
from penstock.coordinator.txn.replies import NOBODY
from penstock.coordinator.txn.states import TxnState
from penstock.coordinator.txn.txn_config import TxnConfig

from .support import T0, T1, Desk


def test_a_new_id_starts_at_epoch_0_and_each_taker_raises_it() -> None:
    desk = Desk()
    assert desk.init().producer == Producer(1000, 0)
    assert desk.found().state is TxnState.EMPTY
    assert desk.init().producer == Producer(1000, 1)
    desk.restart()
    assert desk.init().producer == Producer(1000, 2)
    assert desk.init(transactional_id="other").producer == Producer(1001, 0)


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [(0, 50), (-1, 50), (900_000, 0), (900_001, 50)],
)
def test_timeouts_have_bounds(timeout_ms: int, code: int) -> None:
    assert Desk().init(timeout_ms=timeout_ms).error_code == code


def test_an_empty_id_and_one_that_does_not_fit_its_record_are_refused() -> None:
    assert Desk().init(transactional_id="").error_code is ErrorCode.invalid_request
    assert Desk().init(transactional_id="ä" * 20_000).error_code is ErrorCode.invalid_request


def test_an_open_transaction_is_aborted_first_and_its_writer_shut_out() -> None:
    desk = Desk()
    old = desk.init().producer
    assert desk.add(old, T0) is ErrorCode.none
    assert desk.init().error_code is ErrorCode.concurrent_transactions
    assert desk.found().state is TxnState.PREPARE_ABORT
    assert desk.found().writer == Producer(1000, 1)  # The markers bear an epoch that nobody is given.
    assert desk.init().error_code is ErrorCode.concurrent_transactions
    desk.complete()
    assert desk.init().producer == Producer(1000, 2)
    assert desk.add(old) is ErrorCode.producer_fenced
    for version in (0, 2):
        for is_commit in (True, False):
            assert desk.end(old, is_commit=is_commit, version=version).error_code is ErrorCode.producer_fenced


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_who_was_shut_out_by_an_abort_is_not_taken_for_one_who_asks_again(version: int, is_restarted: bool) -> None:
    """With one epoch more than the writer's, the aborted transaction looks like one that it has ended itself."""
    desk = Desk()
    old = desk.init().producer
    desk.add(old, version=version)
    desk.init()
    desk.complete()
    if is_restarted:
        desk.restart()
    assert desk.end(old, is_commit=False, version=version).error_code is ErrorCode.producer_fenced


# A producer that says who it is (KIP-360)


def test_a_producer_goes_on_under_a_new_epoch_and_may_ask_twice() -> None:
    desk = Desk()
    first = desk.init().producer
    second = desk.init(first).producer
    assert second == Producer(1000, 1)
    desk.restart()
    assert desk.init(first).producer == second
    assert desk.init(second).producer == Producer(1000, 2)
    assert desk.init(first).error_code is ErrorCode.producer_fenced


def test_after_somebody_new_came_the_old_one_is_shut_out() -> None:
    desk = Desk()
    first = desk.init().producer
    desk.init()
    assert desk.init(first).error_code is ErrorCode.producer_fenced
    assert desk.init(Producer(77, 0)).error_code is ErrorCode.producer_fenced


def test_an_id_that_expired_is_made_anew() -> None:
    assert Desk().init(Producer(77, 5)).producer == Producer(1000, 0)


def used_up(desk: Desk, epoch: int = 32_766) -> Producer:
    desk.init()
    desk.carry_out_record(desk.found()._replace(producer_epoch=epoch))
    return desk.found().holder


def test_an_id_without_epochs_left_is_replaced() -> None:
    desk = Desk()
    used_up(desk)
    assert desk.init().producer == Producer(1001, 0)
    desk = Desk()
    last = used_up(desk)
    new = desk.init(last).producer
    assert new == Producer(1001, 0)
    desk.restart()
    assert desk.init(last).producer == new  # It asks again.


def test_an_abort_that_takes_the_last_epoch_leads_to_a_new_id() -> None:
    desk = Desk()
    last = used_up(desk)
    desk.add(last)
    desk.init()
    assert desk.found().writer == Producer(1000, 32_767)
    desk.complete()
    assert desk.end(last, is_commit=False, version=2).error_code is ErrorCode.producer_fenced
    assert desk.init().producer == Producer(1001, 0)


# Handing a transaction over (KIP-939)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_an_open_transaction_is_kept_for_who_takes_it_over(version: int, is_commit: bool) -> None:
    desk = Desk()
    writer = desk.init().producer
    desk.add(writer, T0, T1, version=version)
    reply = desk.init(enable_2pc=True, keep_prepared=True)
    assert (reply.error_code, reply.producer, reply.ongoing) == (ErrorCode.none, Producer(1000, 1), writer)
    # Who wrote it is shut out, and nobody adds to it.
    assert desk.add(writer, T0) is ErrorCode.producer_fenced
    assert set(desk.verify(writer, T0).values()) == {ErrorCode.producer_fenced}
    assert desk.end(writer, is_commit=True, version=version).error_code is ErrorCode.producer_fenced
    assert desk.add(reply.producer, T0) is ErrorCode.invalid_txn_state
    # No time ends it.
    desk.restart()
    desk.pass_time(10**12)
    assert desk.carry_out(desk.shard.abort_timed_out(desk.now)) == []
    desk.shard.expire(desk.now)
    assert desk.carry_out(desk.shard.expire(desk.now)) == []
    # Whoever knows the ids ends it, again and again.
    ended = desk.end(reply.producer, is_commit=is_commit, version=version)
    assert ended.error_code is ErrorCode.none
    assert desk.found().partitions == {T0, T1}
    assert desk.found().writer.producer_id == writer.producer_id
    assert desk.found().writer.epoch > writer.epoch
    assert desk.end(reply.producer, is_commit=is_commit, version=version).error_code == 51
    desk.complete()
    desk.restart()
    for _ in range(2):
        assert desk.end(reply.producer, is_commit=is_commit, version=version) == ended
        other = desk.end(reply.producer, is_commit=not is_commit, version=version)
        assert other.error_code is ErrorCode.invalid_txn_state


def test_the_last_who_takes_it_over_has_it() -> None:
    desk = Desk()
    writer = desk.init().producer
    desk.add(writer)
    first = desk.init(enable_2pc=True, keep_prepared=True)
    second = desk.init(enable_2pc=True, keep_prepared=True)
    assert (second.producer, second.ongoing) == (Producer(1000, 2), writer)
    assert desk.end(first.producer, is_commit=True).error_code is ErrorCode.producer_fenced
    assert desk.end(second.producer, is_commit=True).error_code is ErrorCode.none


@pytest.mark.parametrize("version", [0, 2])
def test_it_can_be_handed_over_when_the_id_has_no_epochs_left(version: int) -> None:
    desk = Desk()
    writer = used_up(desk)
    desk.add(writer, version=version)
    reply = desk.init(enable_2pc=True, keep_prepared=True)
    assert (reply.producer, reply.ongoing) == (Producer(1001, 0), writer)
    assert desk.end(writer, is_commit=True, version=version).error_code is ErrorCode.invalid_producer_id_mapping
    assert desk.add(writer) is ErrorCode.producer_fenced
    ended = desk.end(reply.producer, is_commit=True, version=version)
    assert ended.producer == Producer(1001, 1 if version else 0)
    assert desk.found().writer == Producer(1000, 32_767)
    assert desk.complete().writer == ended.producer
    desk.restart()
    assert desk.end(reply.producer, is_commit=True, version=version) == ended


def test_a_taker_that_says_who_it_is_may_ask_twice() -> None:
    desk = Desk()
    writer = desk.init().producer
    desk.add(writer)
    reply = desk.init(writer, enable_2pc=True, keep_prepared=True)
    assert (reply.producer, reply.ongoing) == (Producer(1000, 1), writer)
    assert desk.init(writer, enable_2pc=True, keep_prepared=True) == reply


def test_who_does_not_want_to_keep_it_aborts_it() -> None:
    desk = Desk()
    desk.add(desk.init().producer)
    taker = desk.init(enable_2pc=True, keep_prepared=True).producer
    assert desk.init().error_code is ErrorCode.concurrent_transactions
    assert desk.complete().state is TxnState.COMPLETE_ABORT
    assert desk.end(taker, is_commit=True).error_code is ErrorCode.producer_fenced
    assert desk.init().producer == Producer(1000, 3)


def test_with_nothing_open_there_is_nothing_to_keep() -> None:
    desk = Desk()
    desk.init()
    reply = desk.init(enable_2pc=True, keep_prepared=True)
    assert (reply.producer, reply.ongoing) == (Producer(1000, 1), NOBODY)
    assert desk.found().timeout_ms == NO_TIMEOUT_MS


def test_two_phase_commit_can_be_forbidden() -> None:
    desk = Desk(TxnConfig(is_two_phase_allowed=False))
    assert desk.init(enable_2pc=True).error_code is ErrorCode.transactional_id_authorization_failed
    assert desk.init().error_code is ErrorCode.none
