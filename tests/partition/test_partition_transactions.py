"""Transactions in one partition: what holds readers back, what a marker changes, who is refused. Rules 14 and 15."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from test_partition import HeldFileSystem, batch, led_with_two_others, open_partition, values_in

from penstock.base.clock import SystemClock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset
from penstock.cluster.image import PartitionState
from penstock.partition.partition import Marker, Partition
from penstock.partition.verification_guards import VerificationGuard
from penstock.storage.fs import PosixFileSystem
from penstock.storage.txn_index import AbortedTxn
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch

PID = 4000
OS = TopicConfig(durability="os")
TV1, TV2 = 1, 2


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def txn_batch(*values: bytes, sequence: int = 0, pid: int = PID, epoch: int = 0) -> memoryview:
    now_ms = SystemClock().now_ms()
    records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
    return memoryview(
        build_batch(
            records,
            base_offset=0,
            attributes=TRANSACTIONAL_MASK,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def guard_of(partition: Partition, pid: int = PID, epoch: int = 0, sequence: int = 0) -> VerificationGuard | None:
    return partition.begin_verification(pid, epoch, sequence, begins_at_zero=False)


def write(partition: Partition, *values: bytes, sequence: int = 0, pid: int = PID, epoch: int = 0) -> Offset:
    """A transactional batch of a transaction that its coordinator knows."""
    guard = guard_of(partition, pid, epoch, sequence)
    view = txn_batch(*(values or (b"v",)), sequence=sequence, pid=pid, epoch=epoch)
    return partition.append(view, produce_version=12, is_transactional=True, guard=guard).base_offset


def end(
    partition: Partition,
    *,
    commit: bool,
    pid: int = PID,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = TV1,
) -> Offset:
    return partition.append_marker(
        producer_id=pid,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        is_commit=commit,
        transaction_version=version,
    )


def stable_values(partition: Partition, start: int = 0) -> list[bytes | None]:
    data = partition.read(Offset(start), 1 << 20, at_least_one=True, only_stable=True)
    return [value for value in values_in(data) if value is not None and value[:2] != b"\0\0"]  # None of markers.


@pytest.mark.parametrize("commit", [True, False])
def test_readers_of_committed_data_stop_at_an_open_transaction(tmp_path: Path, commit: bool) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        partition.append(batch(b"before"), produce_version=9)
        write(partition, b"inside")
        partition.append(batch(b"behind"), produce_version=9)
        assert (partition.last_stable_offset, partition.high_watermark) == (1, 3)
        assert stable_values(partition) == [b"before"]
        assert partition.read(Offset(1), 1 << 20, at_least_one=True, only_stable=True) == b""
        assert values_in(partition.read(Offset(1), 1 << 20, at_least_one=True)) == [b"inside", b"behind"]
        assert end(partition, commit=commit) == 4
        assert partition.last_stable_offset == 4
        assert stable_values(partition) == [b"before", b"inside", b"behind"]
        expected = [] if commit else [AbortedTxn(PID, 1, 3, 4)]
        assert partition.aborted(Offset(0), Offset(4)) == expected

    run(scenario())


def test_a_marker_counts_once_it_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs = HeldFileSystem()
        partition = open_partition(fs, tmp_path, TopicConfig())
        write(partition)
        await asyncio.sleep(0)
        await fs.let_go()
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
        end(partition, commit=True)
        await asyncio.sleep(0)
        assert partition.last_stable_offset == 0
        await fs.let_go()
        assert (partition.last_stable_offset, partition.high_watermark) == (2, 2)

    run(scenario())


def test_the_older_of_two_transactions_holds_both_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition, pid=1)
        write(partition, pid=2)
        end(partition, commit=False, pid=2)
        assert partition.last_stable_offset == 0
        assert partition.aborted(Offset(0), Offset(3)) == [AbortedTxn(2, 1, 2, 0)]
        end(partition, commit=False, pid=1)
        assert partition.last_stable_offset == 4
        assert partition.aborted(Offset(0), Offset(1)) == [AbortedTxn(1, 0, 3, 4)]
        assert partition.aborted(Offset(1), Offset(4)) == [AbortedTxn(2, 1, 2, 0), AbortedTxn(1, 0, 3, 4)]

    run(scenario())


def test_deleted_records_hold_nobody_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition)
        write(partition, sequence=1)
        partition.delete_records(Offset(1))
        assert partition.last_stable_offset == 1

    run(scenario())


# Who waits


def test_waiting_readers_are_woken_when_their_end_moves(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        told: list[int] = []
        told_all: list[int] = []
        partition.waiters.wait(told.append, only_stable=True)
        partition.waiters.wait(told_all.append)
        partition.append(batch(b"v"), produce_version=9)
        await asyncio.sleep(0)
        assert told == told_all  # Nothing is undecided: bytes count as ever.
        assert len(told) == 1
        write(partition)
        await asyncio.sleep(0)
        told.clear()
        write(partition, sequence=1)
        await asyncio.sleep(0)
        assert told == []
        assert len(told_all) == 3
        end(partition, commit=True)
        await asyncio.sleep(0)
        assert told == [2**31]  # More than the marker's bytes: those of the whole transaction.
        told.clear()
        partition.append(batch(b"v"), produce_version=9)
        await asyncio.sleep(0)
        assert told == told_all[-1:]
        partition.waiters.stop(told.append)

    run(scenario())


# Verification


def test_a_first_batch_needs_the_coordinators_word(tmp_path: Path) -> None:
    """Rule 15: no transaction begins here that its coordinator does not know."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        view = txn_batch(b"v")
        with pytest.raises(Refused) as refused:
            partition.append(view, produce_version=12, is_transactional=True)
        assert refused.value.code is ErrorCode.invalid_txn_state
        with pytest.raises(Refused) as refused:
            partition.append(view, produce_version=12)
        assert refused.value.code is ErrorCode.transactional_id_authorization_failed
        assert partition.log.log_end == 0
        guard = guard_of(partition)
        assert partition.append(view, produce_version=12, is_transactional=True, guard=guard).base_offset == 0
        assert guard_of(partition, sequence=1) is None  # It is open: nobody has to be asked.
        assert write(partition, sequence=1) == 1

    run(scenario())


def test_an_answer_that_a_marker_has_overtaken_counts_no_more(tmp_path: Path) -> None:
    """Rule 15: the batch would begin a transaction that nobody ever ends."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        guard = guard_of(partition)
        end(partition, commit=False)
        with pytest.raises(Refused) as refused:
            partition.append(txn_batch(b"v"), produce_version=9, is_transactional=True, guard=guard)
        assert refused.value.code is ErrorCode.invalid_txn_state
        assert partition.last_stable_offset == partition.log.log_end == 1

    run(scenario())


def test_the_marker_of_the_last_transaction_does_not_touch_who_asks_for_the_next(tmp_path: Path) -> None:
    """KIP-890: EndTxn is answered before the markers are written, and the next transaction may begin at once."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition)
        guard = partition.begin_verification(PID, 1, 0, begins_at_zero=True)
        end(partition, commit=True, epoch=1, version=TV2)
        view = txn_batch(b"next", epoch=1)
        assert partition.append(view, produce_version=12, is_transactional=True, guard=guard).base_offset == 2
        end(partition, commit=True, epoch=2, version=TV2)
        late = partition.begin_verification(PID, 2, 0, begins_at_zero=True)
        end(partition, commit=False, epoch=3, version=TV2)  # Of that transaction itself.
        with pytest.raises(Refused):
            view = txn_batch(b"late", epoch=2)
            partition.append(view, produce_version=12, is_transactional=True, guard=late)

    run(scenario())


def test_nothing_overtakes_a_batch_that_waits_for_the_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        assert guard_of(partition, sequence=0) is guard_of(partition, sequence=5)
        with pytest.raises(Refused) as refused:
            write(partition, sequence=5)
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
        assert write(partition, sequence=0) == 0

    run(scenario())


def test_who_bumps_its_epoch_begins_at_zero(tmp_path: Path) -> None:
    """KIP-890: an unknown producer whose epoch is of this transaction alone has lost a batch if it begins later."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        guard = partition.begin_verification(PID, 3, 5, begins_at_zero=True)
        view = txn_batch(b"v", sequence=5, epoch=3)
        with pytest.raises(Refused) as refused:
            partition.append(view, produce_version=12, is_transactional=True, guard=guard)
        assert refused.value.code is ErrorCode.out_of_order_sequence_number

    run(scenario())


def test_other_batches_of_a_producer_are_refused_while_its_transaction_is_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition)
        plain = build_batch(
            [Record(0, 0, None, b"v")], base_offset=0, producer_id=PID, producer_epoch=0, base_sequence=1
        )
        with pytest.raises(Refused) as refused:
            partition.append(memoryview(plain), produce_version=9)
        assert refused.value.code is ErrorCode.invalid_txn_state
        end(partition, commit=True)
        assert partition.append(memoryview(plain), produce_version=9).base_offset == 2

    run(scenario())


# Epochs


def test_a_marker_of_the_first_protocol_has_the_epoch_of_its_data(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition)
        end(partition, commit=True)
        assert write(partition, sequence=1) == 2  # The sequence goes on.
        end(partition, commit=False, epoch=1)  # The coordinator fences it.
        for attempt in (lambda: write(partition, sequence=2), lambda: end(partition, commit=True)):
            with pytest.raises(Refused) as refused:
                attempt()
            assert refused.value.code is ErrorCode.invalid_producer_epoch

    run(scenario())


def test_a_marker_with_a_new_epoch_fences_what_comes_late(tmp_path: Path) -> None:
    """KIP-890: EndTxn raises the epoch, so a batch of the ended transaction is known by its old one."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition)
        with pytest.raises(Refused) as refused:
            end(partition, commit=True, epoch=0, version=TV2)
        assert refused.value.code is ErrorCode.invalid_producer_epoch
        assert end(partition, commit=True, epoch=1, version=TV2) == 2
        with pytest.raises(Refused) as refused:
            write(partition, sequence=1, epoch=0)
        assert refused.value.code is ErrorCode.invalid_producer_epoch
        with pytest.raises(Refused) as refused:
            write(partition, sequence=1, epoch=1)
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
        assert write(partition, sequence=0, epoch=1) == 2

    run(scenario())


def test_a_marker_that_is_sent_again_is_written_once(tmp_path: Path) -> None:
    """Rule 15: EndTxn and markers are retried, and get the same answer."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition)
        end(partition, commit=False, epoch=1, version=TV2)
        assert end(partition, commit=False, epoch=1, version=TV2) == 2
        assert partition.log.log_end == 2
        with pytest.raises(Refused) as refused:
            end(partition, commit=False, epoch=0, version=TV2)
        assert refused.value.code is ErrorCode.invalid_producer_epoch

    run(scenario())


def test_a_coordinator_that_was_replaced_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        write(partition)
        end(partition, commit=True, coordinator_epoch=5)
        write(partition, sequence=1)
        with pytest.raises(Refused) as refused:
            end(partition, commit=True, coordinator_epoch=4)
        assert refused.value.code is ErrorCode.transaction_coordinator_fenced
        assert partition.last_stable_offset == 2

    run(scenario())


def test_a_marker_is_refused_where_no_append_is_possible(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(min_insync_replicas=2))
        led_with_two_others(partition, 1)
        assert partition.leading is not None
        partition.take_role(
            PartitionState(0, (NodeId(1), NodeId(2), NodeId(3)), (NodeId(1),), NodeId(1), LeaderEpoch(1), 2)
        )
        with pytest.raises(Refused) as refused:
            end(partition, commit=True)
        assert refused.value.code is ErrorCode.not_enough_replicas
        partition.resign()
        with pytest.raises(Refused) as refused:
            end(partition, commit=True)
        assert refused.value.code is ErrorCode.not_leader_or_follower

    run(scenario())


# Records of the broker itself


def test_offsets_of_a_group_are_a_part_of_the_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, OS)
        markers: list[Marker] = []
        partition.on_marker = markers.append
        record = Record(0, 1, b"key", b"offset")
        with pytest.raises(Refused) as refused:
            partition.append_own([record], producer_id=PID, producer_epoch=2)
        assert refused.value.code is ErrorCode.invalid_txn_state
        guard = guard_of(partition, epoch=2, sequence=-1)
        assert partition.append_own([record], producer_id=PID, producer_epoch=2, guard=guard) == 1
        assert partition.append_own([record, record], producer_id=PID, producer_epoch=2) == 3
        assert partition.last_stable_offset == 0
        with pytest.raises(Refused) as refused:
            partition.append_own([record], producer_id=PID, producer_epoch=1)
        assert refused.value.code is ErrorCode.invalid_producer_epoch
        end(partition, commit=True, epoch=3, version=TV2)
        assert markers == [Marker(PID, 3, 0, True, Offset(3))]
        assert partition.last_stable_offset == 4

    run(scenario())


# Followers


def known(partition: Partition) -> dict[int, tuple[int, int, int, Offset | None]]:
    """What is known of each producer, but for the times."""
    return {
        pid: (producer.epoch, producer.next_sequence, producer.coordinator_epoch, producer.txn_first_offset)
        for pid, producer in partition.producers.producers.items()
    }


def test_a_follower_that_copies_knows_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        leader = open_partition(PosixFileSystem(), tmp_path / "a", OS)
        follower = open_partition(PosixFileSystem(), tmp_path / "b", OS)
        follower.take_role(
            PartitionState(0, (NodeId(1), NodeId(2)), (NodeId(1), NodeId(2)), NodeId(2), LeaderEpoch(1), 1)
        )
        write(leader, pid=1)
        write(leader, pid=2)
        end(leader, commit=False, pid=2)
        write(leader, pid=3)
        end(leader, commit=False, pid=3)
        end(leader, commit=True, pid=1, epoch=1, version=TV2)
        write(leader, pid=2, sequence=1)
        follower.copy(memoryview(bytes(leader.read_all(Offset(0), 1 << 20, at_least_one=True))))
        follower.on_leader_offsets(Offset(4), Offset(0))
        assert follower.last_stable_offset == 0  # The first marker that ends it is not known to be committed.
        follower.on_leader_offsets(Offset(7), Offset(0))
        assert follower.last_stable_offset == leader.last_stable_offset == 6
        assert follower.aborted(Offset(0), Offset(7)) == leader.aborted(Offset(0), Offset(7)) != []
        assert known(follower) == known(leader)

    run(scenario())
