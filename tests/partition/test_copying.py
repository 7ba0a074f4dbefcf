"""A follower writes what it is sent, and knows the same, whether batches come one by one or many at once."""

import asyncio
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fetcher import new_fetcher
from test_partition import open_partition
from test_partition_transactions import known

from penstock.base.errors import ErrorCode
from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset
from penstock.cluster.image import PartitionState
from penstock.partition.fetcher import Fetcher
from penstock.partition.partition import Partition
from penstock.storage.fs import PosixFileSystem
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch
from penstock.wire.follower_fetch import Copied, FollowerReply
from penstock.wire.txn_marker import EndTxnMarker, build_marker

CONFIG = replace(TopicConfig(), durability="os", index_interval_bytes=100, segment_ms=50)


class Sent(NamedTuple):
    """A batch as the leader has it."""

    kind: str
    records: int
    value_bytes: int
    gap: int  # Offsets that compaction has left out in front of it.
    later_ms: int  # After the one before it.


SENT = st.builds(
    Sent,
    st.sampled_from(("plain", "plain", "idempotent", "idempotent", "transactional", "commit", "abort", "new epoch")),
    st.integers(1, 3),
    st.sampled_from((0, 10, 150)),
    st.sampled_from((0, 0, 0, 2)),
    st.sampled_from((0, 0, 1, 40)),
)


def batches(sent: list[Sent]) -> list[bytes]:
    found, offset, epoch, time_ms, sequence = [], 0, 1, 1_000, 0
    is_open = False
    for item in sent:
        offset, time_ms = offset + item.gap, time_ms + item.later_ms
        if item.kind in ("commit", "abort"):
            if not is_open:
                continue
            is_open = False
            marker = EndTxnMarker(item.kind == "commit", coordinator_epoch=0)
            stamps = {"base_offset": offset, "leader_epoch": epoch, "timestamp": time_ms}
            found.append(bytes(build_marker(marker, producer_id=7, producer_epoch=0, **stamps)))
            offset += 1
            continue
        epoch += item.kind == "new epoch"
        records = [Record(offset + number, time_ms, None, b"x" * item.value_bytes) for number in range(item.records)]
        producer = {}
        if item.kind == "transactional":
            is_open, producer = True, {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_MASK}
        elif item.kind == "idempotent":
            producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
            sequence += item.records
        found.append(bytes(build_batch(records, base_offset=offset, leader_epoch=LeaderEpoch(epoch), **producer)))
        offset += item.records
    return found


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.suffix in (".log", ".index", ".timeindex", ".txnindex", "")
    }


async def follower(directory: Path, config: TopicConfig) -> Partition:
    partition = open_partition(PosixFileSystem(), directory, config)
    both = (NodeId(1), NodeId(2))
    partition.take_role(PartitionState(0, both, both, NodeId(2), LeaderEpoch(1), 1))
    return partition


@settings(max_examples=60)
@given(
    st.lists(SENT, max_size=40),
    st.lists(st.integers(1, 12), min_size=1, max_size=10),
    st.sampled_from((400, 1500, 1 << 20)),
    st.sampled_from((8, 24, 1 << 20)),
)
def test_many_at_once_leave_the_same_behind(
    sent: list[Sent], sizes: list[int], segment_bytes: int, index_bytes: int
) -> None:
    config = replace(CONFIG, segment_bytes=segment_bytes, segment_index_bytes=index_bytes)
    all_batches = batches(sent)

    async def scenario(place: Path) -> None:
        one_by_one, in_rows = await follower(place / "a", config), await follower(place / "b", config)
        for batch in all_batches:
            one_by_one.copy(memoryview(batch))
        rest = iter(all_batches)
        for size in itertools.cycle(sizes):
            row = list(itertools.islice(rest, size))
            if not row:
                break
            in_rows.copy(memoryview(b"".join(row)))
        assert in_rows.log.log_end == one_by_one.log.log_end
        assert [segment.base_offset for segment in in_rows.log.segments] == [
            segment.base_offset for segment in one_by_one.log.segments
        ]
        assert known(in_rows) == known(one_by_one)
        for partition in (one_by_one, in_rows):
            partition.log.active.store_indexes()
        assert files(place / "b") == files(place / "a")
        end = one_by_one.log.log_end
        for offset in range(0, end + 1, 3):
            for partition in (one_by_one, in_rows):
                partition.on_leader_offsets(Offset(offset), Offset(0))
            assert in_rows.last_stable_offset == one_by_one.last_stable_offset
            assert in_rows.waiters._uncommitted == one_by_one.waiters._uncommitted
        assert in_rows.aborted(Offset(0), end) == one_by_one.aborted(Offset(0), end)

    with tempfile.TemporaryDirectory() as place:
        asyncio.run(scenario(Path(place)))


# A leader's log that starts inside a batch


CONFIG_SYNCED = TopicConfig(file_delete_delay_ms=0)
FOLLOWING = PartitionState(0, (NodeId(1), NodeId(2)), (NodeId(2),), NodeId(2), LeaderEpoch(1), 1)


def three_from_34(last: bytes = b"36") -> bytes:
    records = [Record(34 + number, 1_000, None, value) for number, value in enumerate((b"34", b"35", last))]
    return bytes(build_batch(records, base_offset=34, leader_epoch=1))


def one_at_37() -> bytes:
    return bytes(build_batch([Record(37, 1_000, None, b"37")], base_offset=37, leader_epoch=1))


def told(records: bytes, *, log_start: int = 35, high_watermark: int = 38) -> FollowerReply:
    item = Copied(UUID(int=1), 0, 0, high_watermark, log_start, memoryview(records), None)
    return FollowerReply(0, 7, [item])


def out_of_range(log_start: int) -> FollowerReply:
    error = ErrorCode.offset_out_of_range
    return FollowerReply(0, 7, [Copied(UUID(int=1), 0, error, -1, log_start, memoryview(b""), None)])


def following(partition: Partition) -> Fetcher:
    partition.take_role(FOLLOWING)
    fetcher = new_fetcher()
    fetcher.follow(partition, LeaderEpoch(1), is_in_sync=False)
    return fetcher


def opened(path: Path) -> Partition:
    return open_partition(PosixFileSystem(), path, CONFIG_SYNCED)


def test_an_empty_log_begins_with_the_batch_that_its_leaders_log_starts_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = opened(tmp_path)
        fetcher = following(partition)
        await fetcher._take(out_of_range(35))
        assert partition.copied_end[0] == 35
        await fetcher._take(told(three_from_34() + one_at_37()))
        log = partition.log
        assert (partition.log_start, partition.high_watermark, log.log_end, log.synced_end) == (35, 38, 38, 38)
        assert bytes(log.read(Offset(35), 1 << 20, log.log_end, at_least_one=True)) == three_from_34() + one_at_37()
        assert (partition.copied_end, partition.epoch_at(Offset(35))) == ((38, 1), 1)
        assert partition.end_offset_for(LeaderEpoch(0)) == (0, 34)
        assert not fetcher._resting
        await fetcher.stop()
        await partition._logs.stop()
        again = opened(tmp_path)
        assert (again.log_start, again.log.log_end, again.log.failure) == (35, 38, None)
        assert (again._logs.damaged, again._checkpoint.epochs.entries) == ({}, [(1, 34)])

    asyncio.run(scenario())


@pytest.mark.parametrize("records", [b"", three_from_34()[:-1], three_from_34()[:30], three_from_34()[:-1] + b"x"])
def test_a_log_begins_nowhere_else_for_a_batch_that_is_not_sound(tmp_path: Path, records: bytes) -> None:
    async def scenario() -> None:
        partition = opened(tmp_path)
        fetcher = following(partition)
        await partition.start_over(Offset(35))
        await fetcher._take(told(records))
        assert (partition.log_start, partition.high_watermark, partition.log.log_end) == (35, 35, 35)
        await fetcher.stop()

    asyncio.run(scenario())


def test_a_log_with_records_takes_no_batch_that_begins_before_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = opened(tmp_path)
        fetcher = following(partition)
        await partition.start_over(Offset(34))
        await fetcher._take(told(three_from_34(), log_start=34, high_watermark=35))
        await fetcher._take(told(three_from_34(last=b"other"), log_start=34, high_watermark=35))
        assert partition.log.log_end == 37
        assert bytes(partition.read_all(Offset(34), 1 << 20, at_least_one=True)) == three_from_34()
        await fetcher.stop()

    asyncio.run(scenario())


def test_a_batch_of_a_leader_that_was_replaced_meanwhile_is_not_copied(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = opened(tmp_path)
        fetcher = following(partition)
        await partition.start_over(Offset(35))
        taking = asyncio.create_task(fetcher._take(told(three_from_34())))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # The cut is a task of its own.
        assert partition.is_truncating
        fetcher.drop(partition)
        await taking
        assert partition.log.size == 0
        assert partition.log_start == partition.high_watermark == partition.log.log_end == 34
        # Whoever leads now says where its log starts.
        fetcher.follow(partition, LeaderEpoch(1), is_in_sync=False)
        await fetcher._take(out_of_range(35))
        await fetcher._take(told(three_from_34()))
        assert (partition.log_start, partition.log.log_end) == (35, 37)
        await fetcher.stop()

    asyncio.run(scenario())
