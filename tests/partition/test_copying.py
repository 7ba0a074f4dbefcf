"""A follower writes what it is sent, and knows the same, whether batches come one by one or many at once."""

import asyncio
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from test_partition import open_partition
from test_partition_transactions import known

from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset
from penstock.cluster.image import PartitionState
from penstock.partition.partition import Partition
from penstock.storage.fs import PosixFileSystem
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch
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
