"""A coordinator's log with transactions says the same before and after it was compacted (rule 20)."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from penstock.base.errors import ErrorCode
from penstock.base.topic_config import TopicConfig

from .test_txn_runner import UNSTABLE, Coordinator

COMPACT = TopicConfig(
    durability="os",
    cleanup_policy=("compact",),
    segment_bytes=2048,
    min_cleanable_dirty_ratio=0.01,
    file_delete_delay_ms=0,
)
PARTITIONS, PRODUCERS = range(4), range(1, 5)


def seen(coordinator: Coordinator) -> dict[int, int | ErrorCode]:
    return {number: coordinator.fetch(number) for number in PARTITIONS}


def step(coordinator: Coordinator, random: Random, offset: int) -> None:
    partition, pid = random.choice(PARTITIONS), random.choice(PRODUCERS)
    chance = random.random()
    if chance < 0.4:
        coordinator.commit(offset, partition=partition, pid=pid)
    elif chance < 0.6:
        coordinator.commit(offset, partition=partition)
    elif chance < 0.95:
        coordinator.end(pid, is_commit=random.random() < 0.5)
    else:
        coordinator.delete(partition)


@pytest.mark.parametrize("seed", range(3))
def test_a_compacted_log_says_the_same(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        random, coordinator = Random(seed), Coordinator(tmp_path, COMPACT)
        await coordinator.runner.load()
        for number in range(6):
            for more in range(random.randrange(20, 100)):
                step(coordinator, random, 1000 * number + more)
            before = seen(coordinator)
            await coordinator.compact()
            await coordinator.move()
            assert seen(coordinator) == before
        # And each of those that are open can still end.
        for pid in PRODUCERS:
            coordinator.end(pid, is_commit=pid % 2 == 0)
        before = seen(coordinator)
        assert UNSTABLE not in before.values()
        await coordinator.compact()
        await coordinator.move()
        assert seen(coordinator) == before

    asyncio.run(scenario())
