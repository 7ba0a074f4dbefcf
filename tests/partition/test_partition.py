"""One partition: what is committed when, and who is told."""

import asyncio
import errno
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.base.clock import SystemClock
from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicPartition
from penstock.cluster.image import PartitionState
from penstock.partition import waiters
from penstock.partition.partition import Appended, Partition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.log_manager import LogManager
from penstock.wire.batch import CorruptBatch, Record, build_batch, records_of, stamp

TP = TopicPartition("topic", 0)
MAGIC_AT = 16  # In a batch.
LENGTH_AT = 8


class HeldFileSystem(PosixFileSystem):
    """A disk whose syncs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[asyncio.Future[None]] = []

    async def run(self, function: Callable[[], Any]) -> Any:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append(future)
        await future
        return function()

    async def let_go(self) -> None:
        self.held.pop(0).set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


class SlowFileSystem(PosixFileSystem):
    """A disk whose syncs wait while they may not be made."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = asyncio.Event()
        self.may_sync.set()

    async def run(self, function: Callable[[], Any]) -> Any:
        await self.may_sync.wait()
        return function()


def open_partition(
    fs: PosixFileSystem,
    directory: Path,
    config: TopicConfig,
    epoch: int = 0,
    may_lead: Callable[[], bool] | None = None,
) -> Partition:
    clock = SystemClock()
    logs = LogManager(config=BrokerConfig(data_dir=str(directory)), fs=fs, clock=clock)
    logs.start()
    partition = Partition(
        topic_partition=TP,
        topic_id=UUID(int=1),
        node_id=NodeId(1),
        partition_log=logs.open(TP, UUID(int=1), config),
        logs=logs,
        fs=fs,
        clock=clock,
        decompressed_bytes_max=1 << 20,
        may_lead=may_lead,
    )
    partition.open(Offset(0))
    alone = (NodeId(1),)
    partition.take_role(PartitionState(0, alone, alone, NodeId(1), LeaderEpoch(epoch), 0))
    return partition


def led_with_two_others(partition: Partition, epoch: int) -> None:
    replicas = (NodeId(1), NodeId(2), NodeId(3))
    partition.take_role(PartitionState(0, replicas, replicas, NodeId(1), LeaderEpoch(epoch), 1))


def batch(*values: bytes) -> memoryview:
    now_ms = SystemClock().now_ms()
    return memoryview(build_batch([Record(n, now_ms, None, value) for n, value in enumerate(values)], base_offset=0))


def values_in(data: Any) -> list[bytes | None]:
    found, position = [], 0
    while position < len(data):
        records = list(records_of(data, position, decompressed_bytes_max=1 << 20))
        found += [record.value for record in records]
        position += int.from_bytes(data[position + 8 : position + 12], "big") + 12
    return found


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_nothing_is_readable_or_committed_before_it_is_synced(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs = HeldFileSystem()
        partition = open_partition(fs, tmp_path, TopicConfig())
        told: list[ErrorCode] = []
        appended = partition.append(batch(b"a", b"b"), produce_version=9)
        assert not partition.when_committed(appended.next_offset, told.append)
        await asyncio.sleep(0)
        assert partition.read(Offset(0), 1000, at_least_one=True) == b""
        assert (partition.high_watermark, told) == (0, [])
        await fs.let_go()
        assert (partition.high_watermark, told) == (2, [ErrorCode.none])
        assert values_in(partition.read(Offset(0), 1000, at_least_one=True)) == [b"a", b"b"]

    run(scenario)


def test_without_fsync_what_is_written_is_readable_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(HeldFileSystem(), tmp_path, TopicConfig(durability="os"))
        appended = partition.append(batch(b"a"), produce_version=9)
        assert partition.when_committed(appended.next_offset, lambda code: None)
        assert values_in(partition.read(Offset(0), 1000, at_least_one=True)) == [b"a"]

    run(scenario)


def test_one_sync_commits_all_that_gathered_behind_the_one_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs = HeldFileSystem()
        partition = open_partition(fs, tmp_path, TopicConfig())
        for _ in range(10):
            partition.append(batch(b"x"), produce_version=9)
            await asyncio.sleep(0)
        await fs.let_go()
        assert partition.high_watermark == 1
        await fs.let_go()
        assert (partition.high_watermark, len(fs.held)) == (10, 0)

    run(scenario)


def test_a_waiter_is_told_of_bytes_appended_while_an_earlier_sync_ran(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs = HeldFileSystem()
        partition = open_partition(fs, tmp_path, TopicConfig())
        told: list[int] = []
        partition.append(batch(b"first"), produce_version=9)
        await asyncio.sleep(0)
        partition.waiters.wait(told.append)
        partition.append(batch(b"second"), produce_version=9)
        await fs.let_go()
        first = len(batch(b"first"))
        assert told == [first]
        partition.waiters.stop(told.append)
        partition.waiters.wait(told.append)
        await fs.let_go()
        assert told == [first, len(batch(b"second"))]

    run(scenario)


def test_a_failed_sync_fails_who_waits_and_all_who_come_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs = HeldFileSystem()
        partition = open_partition(fs, tmp_path, TopicConfig())
        told: list[ErrorCode] = []
        appended = partition.append(batch(b"a"), produce_version=9)
        partition.when_committed(appended.next_offset, told.append)
        await asyncio.sleep(0)
        fs.held.pop().set_exception(OSError(5, "Input/output error"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (told, partition.high_watermark) == ([ErrorCode.kafka_storage_error], 0)
        with pytest.raises(Refused) as refused:
            partition.append(batch(b"b"), produce_version=9)
        assert refused.value.code is ErrorCode.kafka_storage_error
        # Also those who have nothing to append and ask for what was written before.
        assert not partition.when_committed(appended.next_offset, told.append)
        await asyncio.sleep(0)
        assert told == [ErrorCode.kafka_storage_error] * 2

    run(scenario)


def test_reads_outside_the_log_are_out_of_range(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(HeldFileSystem(), tmp_path, TopicConfig(durability="os"))
        partition.append(batch(b"a", b"b", b"c"), produce_version=9)
        partition.delete_records(Offset(2))
        for offset in (-5, 0, 1, 4, 2**62):
            with pytest.raises(Refused) as refused:
                partition.read(Offset(offset), 1000, at_least_one=True)
            assert refused.value.code is ErrorCode.offset_out_of_range
        # Inside a batch the whole batch comes back; the client skips what it did not ask for.
        assert values_in(partition.read(Offset(2), 1000, at_least_one=True)) == [b"a", b"b", b"c"]
        assert partition.read(Offset(3), 1000, at_least_one=True) == b""

    run(scenario)


def test_records_can_be_deleted_up_to_the_high_watermark_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(HeldFileSystem(), tmp_path, TopicConfig(durability="os"))
        partition.append(batch(b"a", b"b", b"c"), produce_version=9)
        for offset in (4, -2):
            with pytest.raises(Refused) as refused:
                partition.delete_records(Offset(offset))
            assert refused.value.code is ErrorCode.offset_out_of_range
        assert partition.delete_records(Offset(-1)) == 3
        assert partition.delete_records(Offset(1)) == 3, "the start never moves back"

    run(scenario)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, None), (3, None), (2, ErrorCode.fenced_leader_epoch), (4, ErrorCode.unknown_leader_epoch)],
)
def test_reliability_rule_3_a_client_with_another_leader_epoch_is_fenced(
    tmp_path: Path, epoch: int, code: ErrorCode | None
) -> None:
    async def scenario() -> None:
        partition = open_partition(HeldFileSystem(), tmp_path, TopicConfig(), epoch=3)
        if code is None:
            partition.check_epoch(epoch)
        else:
            with pytest.raises(Refused) as refused:
                partition.check_epoch(epoch)
            assert refused.value.code is code

    run(scenario)


def test_a_leader_whose_lease_has_run_out_does_not_say_where_the_log_ends(tmp_path: Path) -> None:
    """Another may have been elected and have committed more; a client would see an end that goes back."""

    async def scenario() -> None:
        lease = [True]
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(), may_lead=lambda: lease[0])
        partition.check_settled()
        lease[0] = False
        with pytest.raises(Refused) as refused:
            partition.check_settled()
        assert refused.value.code is ErrorCode.not_leader_or_follower
        assert not partition.may_lead

    run(scenario)


def test_leader_epochs_outlive_a_restart_also_without_their_checkpoint(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs = PosixFileSystem()
        config = TopicConfig(durability="os")
        for epoch in (2, 5):
            partition = open_partition(fs, tmp_path, config, epoch)
            partition.append(batch(b"a", b"b"), produce_version=9)
        partition = open_partition(fs, tmp_path, config, epoch=5)
        assert partition.end_offset_for(LeaderEpoch(2)) == (2, 2)
        (tmp_path / "topic-0/leader-epoch-checkpoint").write_text("garbage")
        partition = open_partition(fs, tmp_path, config, epoch=5)
        assert partition.end_offset_for(LeaderEpoch(3)) == (2, 2)
        assert partition.end_offset_for(LeaderEpoch(5)) == (5, 4)

    run(scenario)


def test_leader_epochs_are_those_of_the_batches_when_the_checkpoint_knows_none(tmp_path: Path) -> None:
    """A follower that was cut to nothing has said so; then a power cut has kept its first batch, but not its epoch."""

    async def scenario() -> None:
        fs = PosixFileSystem()
        config = TopicConfig(durability="os")
        partition = open_partition(fs, tmp_path, config, epoch=3)
        partition.append(batch(b"a", b"b"), produce_version=9)
        (tmp_path / "topic-0/leader-epoch-checkpoint").write_text("0\n0\n")
        partition = open_partition(fs, tmp_path, config, epoch=3)
        assert partition.copied_end == (2, 3)

    run(scenario)


def test_append_time_replaces_the_producers_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = TopicConfig(durability="os", message_timestamp_type="LogAppendTime")
        partition = open_partition(HeldFileSystem(), tmp_path, config)
        old = memoryview(build_batch([Record(0, 1000, None, b"v")], base_offset=0))
        appended = partition.append(old, produce_version=9)
        data = partition.read(Offset(0), 1000, at_least_one=True)
        (record,) = records_of(data, decompressed_bytes_max=1000)
        assert record.timestamp == appended.log_append_time > 1_600_000_000_000

    run(scenario)


def place_of(appended: Appended) -> tuple[Offset, Offset, int]:
    return appended.base_offset, appended.next_offset, appended.log_append_time


def idempotent(first_sequence: int, *values: bytes, producer_id: int = 7, epoch: int = 0) -> memoryview:
    now_ms = SystemClock().now_ms()
    records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
    return memoryview(
        build_batch(records, base_offset=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=first_sequence)
    )


def test_a_retried_batch_is_stored_once_and_answered_with_its_first_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        first = partition.append(idempotent(0, b"a", b"b"), produce_version=9)
        partition.append(idempotent(2, b"c"), produce_version=9)
        again = partition.append(idempotent(0, b"a", b"b"), produce_version=9)
        assert place_of(again) == place_of(first)
        assert partition.log.log_end == 3
        with pytest.raises(Refused) as refused:
            partition.append(idempotent(9, b"gap"), produce_version=9)
        assert refused.value.code is ErrorCode.out_of_order_sequence_number

    run(scenario)


def test_nothing_overtakes_a_first_batch_that_came_before_its_leader(tmp_path: Path) -> None:
    """Or the first would be out of order for ever."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        both = (NodeId(1), NodeId(2))
        partition.take_role(PartitionState(0, both, both, NodeId(2), LeaderEpoch(1), 1))
        with pytest.raises(Refused) as refused:
            partition.append(idempotent(0, b"a"), produce_version=9)
        assert refused.value.code is ErrorCode.not_leader_or_follower
        partition.take_role(PartitionState(0, both, both, NodeId(1), LeaderEpoch(2), 2))
        with pytest.raises(Refused) as refused:
            partition.append(idempotent(1, b"b"), produce_version=9)
        assert refused.value.code is ErrorCode.not_leader_or_follower
        assert partition.append(idempotent(0, b"a"), produce_version=9).base_offset == 0
        assert partition.append(idempotent(1, b"b"), produce_version=9).base_offset == 1

    run(scenario)


def test_what_was_copied_in_front_of_a_bad_batch_is_synced(tmp_path: Path) -> None:
    """A fetcher waits for that before it goes on."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig())
        both = (NodeId(1), NodeId(2))
        partition.take_role(PartitionState(0, both, both, NodeId(2), LeaderEpoch(1), 1))
        good, bad = bytes(batch(b"a")), bytearray(batch(b"b"))
        bad[7] = 1  # The next offset.
        bad[-1] ^= 1
        with pytest.raises(CorruptBatch):
            partition.copy(memoryview(good + bad))
        assert partition.log.log_end == 1
        for _ in range(1000):
            if partition.is_safe:
                break
            await asyncio.sleep(0.01)
        assert partition.is_safe

    run(scenario)


def test_a_retry_that_overtook_its_commit_waits_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs = HeldFileSystem()
        partition = open_partition(fs, tmp_path, TopicConfig())
        partition.append(idempotent(0, b"a"), produce_version=9)
        again = partition.append(idempotent(0, b"a"), produce_version=9)
        told: list[ErrorCode] = []
        assert not partition.when_committed(again.next_offset, told.append)
        await asyncio.sleep(0)
        await fs.let_go()
        assert told == [ErrorCode.none]

    run(scenario)


@pytest.mark.parametrize("stop", ["crash", "clean"])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 150], ids=["one segment", "a segment a batch"])
def test_producers_are_known_after_a_restart(tmp_path: Path, stop: str, segment_bytes: int) -> None:
    async def scenario() -> None:
        fs, config = PosixFileSystem(), TopicConfig(durability="os", segment_bytes=segment_bytes)
        partition = open_partition(fs, tmp_path, config)
        answers = [partition.append(idempotent(n, b"value %d" % n), produce_version=9) for n in range(8)]
        if stop == "clean":
            partition.store_producers()
        partition = open_partition(fs, tmp_path, config)
        for n in range(3, 8):
            again = partition.append(idempotent(n, b"value %d" % n), produce_version=9)
            assert place_of(again) == place_of(answers[n])
        partition.log.recovery_point = partition.log.log_end  # As every second: a start needs no older one.
        assert partition.append(idempotent(8, b"new"), produce_version=9).base_offset == 8
        partition.store_producers()
        assert len(list((tmp_path / "topic-0").glob("*.snapshot"))) <= 2

    run(scenario)


def test_a_damaged_or_premature_snapshot_is_not_believed(tmp_path: Path) -> None:
    async def scenario() -> None:
        fs, config = PosixFileSystem(), TopicConfig(durability="os")
        partition = open_partition(fs, tmp_path, config)
        first = partition.append(idempotent(0, b"a"), produce_version=9)
        partition.store_producers()
        (snapshot,) = (tmp_path / "topic-0").glob("*.snapshot")
        premature = snapshot.with_name(f"{99:020d}.snapshot")
        premature.write_bytes(snapshot.read_bytes())
        snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"?")
        partition = open_partition(fs, tmp_path, config)
        assert not premature.exists()
        again = partition.append(idempotent(0, b"a"), produce_version=9)
        assert place_of(again) == place_of(first)

    run(scenario)


def test_a_log_that_is_damaged_before_the_newest_snapshot_is_opened(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = TopicConfig(index_interval_bytes=300)
        partition = open_partition(PosixFileSystem(), tmp_path, config)
        for n in range(20):
            data = build_batch([Record(0, n, None, b"value")], base_offset=0)
            partition.append(memoryview(data), produce_version=9)
            if n == 8:
                partition.store_producers()
        partition._commit.request(partition.log)
        await partition._commit.finish()
        await partition._logs.checkpoint()
        path = tmp_path / "topic-0" / f"{0:020d}.log"
        content = bytearray(path.read_bytes())
        content[len(content) // 20 * 8 + MAGIC_AT] ^= 0xFF  # Long synced, and not looked at by recovery.
        path.write_bytes(content)
        partition = open_partition(PosixFileSystem(), tmp_path, config)
        assert (partition.log.failure, partition.log.log_end) == (None, 20)

    run(scenario)


def test_leader_epochs_are_looked_for_up_to_damage_and_no_longer(tmp_path: Path) -> None:
    """A header may be damaged so that its batch seems to have no bytes at all: nobody may look at it for ever."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(index_interval_bytes=300))
        for n in range(20):
            partition.append(memoryview(build_batch([Record(0, n, None, b"value")], base_offset=0)), produce_version=9)
        partition._commit.request(partition.log)
        await partition._commit.finish()
        await partition._logs.checkpoint()
        path = tmp_path / "topic-0" / f"{0:020d}.log"
        content = bytearray(path.read_bytes())
        struct.pack_into(">i", content, len(content) // 20 * 8 + LENGTH_AT, -12)
        path.write_bytes(content)
        (tmp_path / "topic-0/leader-epoch-checkpoint").write_text("garbage")
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(index_interval_bytes=300))
        assert partition.end_offset_for(LeaderEpoch(0)) == (0, 20)

    run(scenario)


def test_reliability_rule_11_a_new_leader_shows_nothing_before_it_knows_what_is_committed(tmp_path: Path) -> None:
    """Its predecessor may have shown more than it knows to be committed: time would run backwards (KIP-207)."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        partition.take_role(
            PartitionState(0, (NodeId(1), NodeId(2)), (NodeId(1), NodeId(2)), NodeId(2), LeaderEpoch(1), 1)
        )
        partition.copy(stamped(batch(b"a", b"b"), offset=0, epoch=1))
        assert partition.high_watermark == 0  # The leader has not said more yet.
        led_with_two_others(partition, epoch=2)
        for ask in (partition.check_settled, lambda: partition.read(Offset(0), 1000, at_least_one=True)):
            with pytest.raises(Refused) as refused:
                ask()
            assert refused.value.code is ErrorCode.offset_not_available
        for node_id in (2, 3):
            assert partition.on_follower_fetch(NodeId(node_id), 7, Offset(2), LeaderEpoch(1)) is None
        partition.check_settled()
        assert values_in(partition.read(Offset(0), 1000, at_least_one=True)) == [b"a", b"b"]

    run(scenario)


def test_reliability_rule_3_a_leader_without_its_lease_promises_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        told: list[ErrorCode] = []
        led_with_two_others(partition, epoch=1)
        appended = partition.append(batch(b"a"), produce_version=9)
        assert not partition.when_committed(appended.next_offset, told.append)
        partition._may_lead = lambda: False
        for node_id in (2, 3):
            with pytest.raises(Refused):
                partition.on_follower_fetch(NodeId(node_id), 7, Offset(1), LeaderEpoch(1))
        with pytest.raises(Refused) as refused:
            partition.append(batch(b"b"), produce_version=9)
        assert refused.value.code is ErrorCode.not_leader_or_follower
        assert (partition.high_watermark, told) == (0, [])
        partition.resign()
        assert told == [ErrorCode.not_leader_or_follower]

    run(scenario)


def test_reliability_rule_2_every_epoch_change_is_compared_with_the_leaders_history(tmp_path: Path) -> None:
    """KIP-279: the answer is the largest epoch up to the one asked for, and where it ends."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        for epoch in (1, 4):
            led_with_two_others(partition, epoch)
            partition.append(batch(b"x", b"y"), produce_version=9)
        follower = NodeId(2)
        assert partition.on_follower_fetch(follower, 7, Offset(2), LeaderEpoch(1)) is None
        # It has two records of epoch 1 more than we, or records of an epoch that we never had.
        assert partition.on_follower_fetch(follower, 7, Offset(4), LeaderEpoch(1)) == (1, 2)
        assert partition.on_follower_fetch(follower, 7, Offset(4), LeaderEpoch(3)) == (1, 2)
        assert partition.on_follower_fetch(follower, 7, Offset(4), LeaderEpoch(4)) is None

    run(scenario)


def test_reliability_rule_1_a_follower_cuts_by_epochs_and_not_by_its_high_watermark(tmp_path: Path) -> None:
    """It learns the high watermark late: what lies above may have been acknowledged long ago (KIP-101)."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        both = (NodeId(1), NodeId(2))
        partition.take_role(PartitionState(0, both, both, NodeId(2), LeaderEpoch(1), 1))
        for offset in range(4):
            partition.copy(stamped(batch(b"%d" % offset), offset=offset, epoch=1))
        partition.on_leader_offsets(Offset(1), Offset(0))
        await partition.truncate((LeaderEpoch(1), Offset(3)))
        assert (partition.high_watermark, partition.log.log_end) == (1, 3)
        assert partition.copied_end == (3, 1)

    run(scenario)


def following(fs: PosixFileSystem, directory: Path, config: TopicConfig, *values: bytes) -> Partition:
    """A follower that has these of one producer, each in a batch of its own."""
    partition = open_partition(fs, directory, config)
    both = (NodeId(1), NodeId(2))
    partition.take_role(PartitionState(0, both, both, NodeId(2), LeaderEpoch(1), 1))
    for offset, value in enumerate(values):
        partition.copy(stamped(idempotent(offset, value), offset=offset, epoch=1))
    return partition


def test_a_cut_that_a_stop_interrupts_leaves_no_producer_of_what_was_cut(tmp_path: Path) -> None:
    """Or the next life would tell the producer that its record is there, when it sends it again."""

    async def cut_and_stop() -> None:
        fs = SlowFileSystem()
        partition = following(fs, tmp_path, TopicConfig(), b"a", b"b", b"c", b"d")
        await partition._commit.finish()
        truncate = partition.log.truncate

        def truncate_and_be_slow(offset: Offset) -> list[str]:
            fs.may_sync.clear()
            return truncate(offset)

        partition.log.truncate = truncate_and_be_slow  # type: ignore[method-assign]
        cut = asyncio.create_task(partition.truncate((LeaderEpoch(1), Offset(2))))
        while partition.log.log_end > 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        fs.may_sync.set()
        partition.store_producers()
        await partition._logs.stop()

    async def lead() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(), epoch=2)
        assert partition.log.log_end == 2
        assert place_of(partition.append(idempotent(2, b"c"), produce_version=9))[:2] == (2, 3)
        assert partition.log.log_end == 3

    run(cut_and_stop)
    run(lead)


@pytest.mark.parametrize("step", ["cut", "open_txn_index"])
def test_a_log_that_was_cut_in_part_takes_no_more_records(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would lie behind bytes that had to go, or be taken for those of a producer that were cut off."""

    async def cut() -> None:
        partition = following(PosixFileSystem(), tmp_path, TopicConfig(), b"a", b"b", b"c", b"d")
        partition.log.begin_transactions()
        await partition._commit.finish()

        def fail(*_: object) -> None:
            raise OSError(errno.EMFILE, "for this test")

        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(partition.log.active, step, fail)
            await partition.truncate((LeaderEpoch(1), Offset(2)))
        await partition._commit.finish()
        with pytest.raises(Refused):
            partition.copy(stamped(batch(b"other"), offset=2, epoch=1))
        partition.take_role(PartitionState(0, (NodeId(1),), (NodeId(1),), NodeId(1), LeaderEpoch(3), 2))
        with pytest.raises(Refused):
            partition.append(idempotent(2, b"c"), produce_version=9)

    async def start_again() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(), epoch=4)
        assert partition.log.failure is None
        end = partition.log.log_end
        partition.append(idempotent(end, b"next"), produce_version=9)
        assert partition.log.log_end == end + 1

    run(cut)
    run(start_again)


def test_a_cut_that_could_not_begin_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        partition = following(PosixFileSystem(), tmp_path, TopicConfig(), b"a", b"b", b"c")
        await partition._commit.finish()

        def fail(*_: object) -> None:
            raise OSError(errno.EMFILE, "for this test")

        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(partition.log.active, "locate", fail)
            await partition.truncate((LeaderEpoch(1), Offset(2)))
        assert (partition.log.log_end, partition.log.failure) == (3, None)
        await partition.truncate((LeaderEpoch(1), Offset(2)))
        assert (partition.log.log_end, partition.is_safe) == (2, True)

    run(scenario)


def test_what_was_left_to_the_kernel_is_synced_when_the_topic_wants_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = following(PosixFileSystem(), tmp_path, TopicConfig(durability="os"), b"a")
        partition.take_config(TopicConfig())
        assert not partition.is_safe
        await partition._commit.finish()
        assert partition.is_safe

    run(scenario)


def test_a_follower_that_begins_anew_knows_no_epoch_of_what_it_had(tmp_path: Path) -> None:
    """Its leader would tell it to go back to where that ended, which is before the leader's log, again and again."""

    async def scenario() -> None:
        config = TopicConfig(durability="os")
        leader = open_partition(PosixFileSystem(), tmp_path / "leader", config)
        for epoch in (1, 2):
            led_with_two_others(leader, epoch)
            leader.append(batch(b"a", b"b", b"c", b"d"), produce_version=9)
        for node_id in (2, 3):
            leader.on_follower_fetch(NodeId(node_id), 7, Offset(8), LeaderEpoch(2))
        leader.delete_records(Offset(-1))
        follower = following(PosixFileSystem(), tmp_path / "follower", config, b"a", b"b")  # It was away meanwhile.
        offset, epoch = follower.copied_end
        with pytest.raises(Refused) as refused:
            leader.on_follower_fetch(NodeId(2), 7, offset, epoch)
        assert refused.value.code is ErrorCode.offset_out_of_range
        await follower.start_over(leader.log_start)
        offset, epoch = follower.copied_end
        assert leader.on_follower_fetch(NodeId(2), 7, offset, epoch) is None
        again = open_partition(PosixFileSystem(), tmp_path / "follower", config)
        assert again.copied_end == (8, NO_EPOCH)

    run(scenario)


def test_an_epoch_without_records_does_not_cost_those_of_others_at_the_next_start(tmp_path: Path) -> None:
    """What was noted of it is taken back: a start would take the records that came in its place for unsound."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(), epoch=4)
        partition.append(batch(b"a"), produce_version=9)
        led_with_two_others(partition, epoch=5)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Refused):
            patch.setattr(partition.log, "append", refuse)
            partition.append(batch(b"refused"), produce_version=9)
        both = (NodeId(1), NodeId(2))
        partition.take_role(PartitionState(0, both, both, NodeId(2), LeaderEpoch(6), 1))
        for offset in (1, 2):
            partition.copy(stamped(batch(b"b"), offset=offset, epoch=4))
        again = open_partition(PosixFileSystem(), tmp_path, TopicConfig(), epoch=7)
        assert (again.log.log_end, again.log.failure) == (3, None)

    def refuse(*_: object) -> None:
        raise Refused(ErrorCode.kafka_storage_error, "full")

    run(scenario)


def test_what_is_remembered_of_batches_that_cannot_be_committed_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(waiters, "UNCOMMITTED_MAX", 3)
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        led_with_two_others(partition, epoch=1)
        sizes = []
        for _ in range(5):
            view = batch(b"x")
            sizes.append(len(view))
            partition.append(view, produce_version=9)
        assert [size for _, size in partition.waiters._uncommitted] == [*sizes[:2], sum(sizes[2:])]
        told: list[int] = []
        partition.waiters.wait(told.append)
        for node_id in (2, 3):
            partition.on_follower_fetch(NodeId(node_id), 7, Offset(5), LeaderEpoch(1))
        await asyncio.sleep(0)
        assert told == [sum(sizes)]

    run(scenario)


def stamped(view: memoryview, *, offset: int, epoch: int) -> memoryview:
    stamp(view, 0, offset, epoch)
    return view
