"""EndTxn: decided once; the same again is answered the same."""

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.txn.metadata import Producer
from penstock.coordinator.txn.states import TxnState

from .support import T0, T1, Desk

PREPARED = {True: TxnState.PREPARE_COMMIT, False: TxnState.PREPARE_ABORT}
COMPLETE = {True: TxnState.COMPLETE_COMMIT, False: TxnState.COMPLETE_ABORT}


def opened(version: int = 0, epoch: int = 0) -> tuple[Desk, Producer]:
    desk = Desk()
    desk.init()
    desk.carry_out_record(desk.found()._replace(producer_epoch=epoch))
    producer = Producer(1000, epoch)
    assert desk.add(producer, T0, T1, version=version) is ErrorCode.none
    return desk, producer


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_the_same_end_again_gets_the_same_answer(version: int, is_commit: bool, is_restarted: bool) -> None:
    desk, producer = opened(version)
    reply = desk.end(producer, is_commit=is_commit, version=version)
    assert reply.error_code is ErrorCode.none
    assert reply.producer == Producer(1000, 1 if version else 0)
    assert desk.found().state is PREPARED[is_commit]
    if is_restarted:
        desk.restart()
    assert desk.end(producer, is_commit=is_commit, version=version).error_code is ErrorCode.concurrent_transactions
    assert desk.end(producer, is_commit=not is_commit, version=version).error_code is ErrorCode.invalid_txn_state
    assert desk.complete().state is COMPLETE[is_commit]
    if is_restarted:
        desk.restart()
    for _ in range(2):
        assert desk.end(producer, is_commit=is_commit, version=version) == reply
        assert desk.end(producer, is_commit=not is_commit, version=version).error_code is ErrorCode.invalid_txn_state


def test_markers_bear_the_producers_epoch_or_the_raised_one() -> None:
    desk, producer = opened()
    desk.end(producer, is_commit=True)
    assert (desk.found().writer, desk.found().client_version) == (producer, 0)
    desk, producer = opened(version=2)
    desk.end(producer, is_commit=True, version=2)
    assert (desk.found().writer, desk.found().client_version) == (Producer(1000, 1), 2)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_end_that_takes_the_last_epoch_gives_a_new_id(is_restarted: bool) -> None:
    desk, producer = opened(version=2, epoch=32_766)
    reply = desk.end(producer, is_commit=True, version=2)
    assert reply.producer == Producer(1001, 0)
    assert desk.found().writer == Producer(1000, 32_767)
    assert desk.add(reply.producer) is ErrorCode.concurrent_transactions
    if is_restarted:
        desk.restart()
    assert desk.end(producer, is_commit=True, version=2).error_code is ErrorCode.concurrent_transactions
    assert desk.complete().writer == Producer(1001, 0)
    if is_restarted:
        desk.restart()
    assert desk.end(producer, is_commit=True, version=2) == reply
    assert desk.add(reply.producer, version=2) is ErrorCode.none
    assert desk.end(producer, is_commit=True, version=2).error_code is ErrorCode.invalid_producer_id_mapping


def test_after_the_end_the_next_transaction_is_the_raised_epochs() -> None:
    desk, producer = opened(version=2)
    following = desk.end(producer, is_commit=True, version=2).producer
    assert desk.add(following, version=2) is ErrorCode.concurrent_transactions
    assert desk.init(following).error_code is ErrorCode.concurrent_transactions
    desk.complete()
    assert desk.add(producer, version=2) is ErrorCode.producer_fenced
    assert desk.add(following, version=2) is ErrorCode.none
    assert desk.end(producer, is_commit=True, version=2).error_code is ErrorCode.producer_fenced


def test_nothing_can_be_ended_that_was_not_begun() -> None:
    desk = Desk()
    assert desk.end(Producer(1, 0), is_commit=True).error_code is ErrorCode.invalid_producer_id_mapping
    producer = desk.init().producer
    for is_commit in (True, False):
        assert desk.end(producer, is_commit=is_commit).error_code is ErrorCode.invalid_txn_state
    assert desk.end(producer, is_commit=True, version=2).error_code is ErrorCode.invalid_txn_state


@pytest.mark.parametrize("before", [None, True, False])
def test_from_v5_on_nothing_can_be_aborted(before: bool | None) -> None:
    desk = Desk()
    producer = desk.init().producer
    if before is not None:
        desk.add(producer, version=2)
        producer = desk.end(producer, is_commit=before, version=2).producer
        desk.complete()
    reply = desk.end(producer, is_commit=False, version=2)
    assert reply.producer == Producer(1000, producer.epoch + 1)
    assert desk.found().state is TxnState.PREPARE_ABORT
    assert desk.found().partitions == frozenset()
    assert desk.found().start_ms == desk.now.wall_ms
    desk.complete()
    assert desk.end(producer, is_commit=False, version=2) == reply
    assert desk.end(reply.producer, is_commit=True, version=2).error_code is ErrorCode.invalid_txn_state


def test_the_wrong_producer_hears_what_is_wrong_with_it() -> None:
    for version in (0, 2):
        desk, producer = opened(version)
        wrong_id, wrong_epoch = Producer(5, 0), Producer(1000, 1)
        assert desk.end(wrong_id, is_commit=True, version=version).error_code is ErrorCode.invalid_producer_id_mapping
        assert desk.end(wrong_epoch, is_commit=True, version=version).error_code is ErrorCode.producer_fenced
        assert desk.found().state is TxnState.ONGOING
        assert desk.end(producer, is_commit=True, version=version).error_code is ErrorCode.none


def test_only_what_is_ending_is_completed() -> None:
    desk, producer = opened()
    desk.end(producer, is_commit=True)
    ending = desk.shard.completing["tx"]
    desk.complete()
    assert desk.shard.complete(ending, desk.now).records == []
    assert desk.shard.completing == {}
