"""Transactions on a cluster whose brokers die at every step of them: aborted reads, lost writes, torn transactions.

A seed that fails prints `seed=… step=…` and its scenario. Add it to txn_seeds.txt, where it stays after the fix. To
run certain seeds: `PENSTOCK_TXN_SEEDS=17 pytest tests/sim/test_txn_simulation.py`, or a range, `1-1000`.
"""

from typing import Any

import pytest
from seed_runs import SeedRuns

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.coordinator import txn_coordinator
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.txn.metadata import TransactionMetadata
from penstock.coordinator.txn.states import TxnState
from penstock.coordinator.txn.txn_shard import TxnShard
from penstock.partition.partition import Partition
from penstock.partition.verification_guards import VerificationGuards
from penstock.server import txn_markers
from penstock.sim.transactions import run
from penstock.sim.txn_history import Outcome, Txn, TxnHistory, check

# 30 take about 20 s on one core.
SEEDS = SeedRuns(run, kept="txn_seeds.txt", variable="PENSTOCK_TXN_SEEDS", default="1-30")


def test_seeds_that_once_failed() -> None:
    SEEDS.check_kept()


@pytest.mark.timeout(0)
def test_seeds() -> None:
    SEEDS.check_chosen()


def test_a_seed_gives_the_same_run_twice() -> None:
    SEEDS.check_twice(range(1, 3))


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    SEEDS.check_elsewhere([4])


# The checkers

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_what_no_history_may_show_is_found() -> None:
    def found(outcome: Outcome, *there: bytes, shown: tuple[tuple[TopicPartition, int], bytes] | None = None) -> str:
        txn = Txn("p", 1, {T0: [b"a", b"b"], T1: [b"c"]}, outcome)
        history = TxnHistory([txn], dict([shown]) if shown else {})
        final = {T0: [(n, v) for n, v in enumerate(there) if v != b"c"], T1: [(9, v) for v in there if v == b"c"]}
        return " ".join(check(history, final))

    whole = (b"a", b"b", b"c")
    assert found(Outcome.COMMITTED, *whole) == found(Outcome.UNKNOWN, *whole) == found(Outcome.UNKNOWN) == ""
    assert found(Outcome.ABORTED) == ""
    assert "lost write" in found(Outcome.COMMITTED, b"a", b"b")
    assert "aborted read" in found(Outcome.ABORTED, b"a")
    assert "torn" in found(Outcome.UNKNOWN, b"a", b"c")
    assert "duplicate" in found(Outcome.COMMITTED, b"a", b"a", b"b", b"c")
    assert "reordered" in found(Outcome.COMMITTED, b"b", b"a", b"c")
    assert "phantom" in found(Outcome.COMMITTED, *whole, b"x")
    assert "shown and gone" in found(Outcome.ABORTED, shown=((T0, 0), b"a"))


def test_offsets_that_do_not_go_with_the_records_are_found() -> None:
    def found(offset: int, *there: bytes) -> str:
        transactions = [
            Txn("p", 0, {T0: [b"a"]}, Outcome.UNKNOWN, 1),
            Txn("p", 1, {T0: [b"b"]}, Outcome.UNKNOWN, 2),
            Txn("p", 2, {T0: [b"c"]}, Outcome.UNKNOWN),
        ]
        history = TxnHistory(transactions, offsets={"p": offset})
        return " ".join(check(history, {T0: list(enumerate(there))}))

    assert found(-1) == found(1, b"a") == found(2, b"a", b"b") == found(1, b"a", b"c") == ""
    assert "torn" in found(2, b"a")
    assert "torn" in found(-1, b"a")
    assert "torn" in found(1, b"a", b"b")


# The simulation is worth something only if it finds what it is there to find.


def test_readers_that_do_not_wait_for_the_end_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))
    assert "shown and gone" in SEEDS.problems_of(range(1, 30))


def test_a_coordinator_that_forgets_what_it_has_decided_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TxnShard.on_loaded

    def forgetful(self: TxnShard, now: object) -> object:
        self.take_ending()
        return honest(self, now)  # type: ignore[arg-type]

    monkeypatch.setattr(TxnShard, "on_loaded", forgetful)
    assert "not served" in SEEDS.problems_of(range(6, 60))


def test_a_coordinator_that_commits_for_the_dead_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TransactionMetadata.fenced

    def lenient(self: TransactionMetadata, now_ms: int) -> TransactionMetadata:
        return honest(self, now_ms)._replace(state=TxnState.PREPARE_COMMIT)

    monkeypatch.setattr(TransactionMetadata, "fenced", lenient)
    assert "aborted read" in SEEDS.problems_of(range(1, 60))


def test_offsets_that_do_not_wait_for_the_end_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupShard, "apply_transactional", lambda self, record, *_: self.apply(record))
    assert "torn: the group" in SEEDS.problems_of(range(7, 30))


def test_markers_of_a_decision_that_may_be_lost_yet_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(runner: object) -> None:
        pass

    monkeypatch.setattr(txn_coordinator, "_until_committed", at_once)
    assert "torn" in SEEDS.problems_of([504])


def test_a_marker_that_shuts_out_the_next_transaction_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a leader has learned of the next one, while the markers of the last are on their way."""
    monkeypatch.setattr(VerificationGuards, "on_marker", lambda self, producer_id, _: self.on_first_batch(producer_id))
    assert "invalid_txn_state" in SEEDS.problems_of([66, 183])


def test_a_marker_that_nobody_has_confirmed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = txn_markers._Sender.send

    async def hopeful(self: Any, marker: Any, partitions: Any) -> Any:
        answers = await honest(self, marker, partitions)
        return {partition: answers.get(partition, ErrorCode.none) for partition in partitions}

    monkeypatch.setattr(txn_markers._Sender, "send", hopeful)
    assert "aborted read" in SEEDS.problems_of(range(20, 30))
