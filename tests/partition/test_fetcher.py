"""What a fetcher asks for when partitions come and go while it works."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.base.clock import SystemClock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import LeaderEpoch, NodeId, Offset, TopicPartition
from penstock.partition import fetcher as fetcher_module
from penstock.partition.fetcher import REST_S, Fetcher
from penstock.partition.peers import PeerLost
from penstock.partition.replication_quota import ReplicationQuota
from penstock.wire.fetch_request import read_fetch_request
from penstock.wire.follower_fetch import FOLLOWER_VERSION, Copied, FollowerReply


class NoLinks:
    """Nobody can be reached."""

    async def connect(self, node_id: int) -> Any:
        await asyncio.Event().wait()


def new_fetcher() -> Fetcher:
    return Fetcher(
        leader=NodeId(2),
        node_id=NodeId(1),
        broker_epoch=lambda: 7,
        links=NoLinks(),
        clock=SystemClock(),
        wait_max_ms=500,
        quota=ReplicationQuota(NodeId(1)),
    )


class Copy:
    """A partition as far as a fetcher looks at it."""

    topic_id = UUID(int=1)
    is_safe = True
    is_truncating = False
    copied_end = (10, 3)

    def __init__(self, number: int) -> None:
        self.topic_partition = TopicPartition("t", number)
        self.cuts: list[tuple[LeaderEpoch, Offset]] = []

    def base_to_begin_at(self, records: memoryview) -> None:
        return None

    async def truncate(self, diverging: tuple[LeaderEpoch, Offset]) -> None:
        self.cuts.append(diverging)


def partition(number: int) -> Any:
    return Copy(number)


def asked_for(fetcher: Fetcher) -> list[int]:
    request = read_fetch_request(memoryview(fetcher._request(500)), 0, FOLLOWER_VERSION)
    return [item.partition for item in request.partitions]


def diverging_reply(diverging: tuple[LeaderEpoch, Offset], count: int) -> FollowerReply:
    """A leader's, from whose logs all of these are different."""
    items = [Copied(Copy.topic_id, number, 0, 10, 0, memoryview(b""), diverging) for number in range(count)]
    return FollowerReply(0, 7, items)


def test_a_partition_that_was_given_to_another_while_its_log_was_cut_is_not_asked_for() -> None:
    async def scenario() -> None:
        fetcher = new_fetcher()
        first, second = partition(0), partition(1)
        for one in (first, second):
            fetcher.follow(one, LeaderEpoch(1), is_in_sync=True)
        assert asked_for(fetcher) == [0, 1]
        fetcher._session_epoch = 1
        following = fetcher._following[first.topic_id, 0]

        async def cut() -> None:
            fetcher.drop(first)

        await fetcher._cut(following, cut)
        fetcher._moved[second.topic_id, 1] = None
        assert asked_for(fetcher) == [1]
        await fetcher.stop()

    asyncio.run(scenario())


def test_a_log_is_not_cut_as_a_leader_said_who_has_just_been_replaced() -> None:
    """The next one may have what the last one lacked, and count on it."""

    async def scenario() -> None:
        fetcher = new_fetcher()
        replaced, kept = partition(0), partition(1)
        for one in (replaced, kept):
            fetcher.follow(one, LeaderEpoch(1), is_in_sync=True)
        diverging = (LeaderEpoch(0), Offset(5))
        taking = asyncio.create_task(fetcher._take(diverging_reply(diverging, 2)))
        asyncio.get_running_loop().call_soon(fetcher.drop, replaced)  # By an image that comes in the same turn.
        await taking
        assert (replaced.cuts, kept.cuts) == ([], [diverging])
        await fetcher.stop()

    asyncio.run(scenario())


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


class HeldLink:
    """A leader that answers when it is told to."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[FollowerReply] = asyncio.get_running_loop().create_future()
        self.is_asked = False

    async def ask_raw(self, *_: object) -> FollowerReply:
        self.is_asked = True
        return await self.reply

    def close(self) -> None:
        if not self.reply.done():
            self.reply.set_exception(PeerLost("closed"))


def test_a_reply_of_an_assignment_that_is_over_does_not_count_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker has led in between, whose records were acknowledged: the old leader knew nothing of them."""

    async def scenario() -> None:
        links: list[HeldLink] = []

        async def connect(node_id: int) -> HeldLink:
            links.append(HeldLink())
            return links[-1]

        fetcher, one = new_fetcher(), partition(0)
        fetcher._links = SimpleNamespace(connect=connect)  # type: ignore[assignment]
        monkeypatch.setattr(fetcher_module, "read_follower_reply", lambda reply: reply)
        fetcher.follow(one, LeaderEpoch(5), is_in_sync=True)
        await until(lambda: bool(links) and links[0].is_asked)
        fetcher.drop(one)
        # In one turn of the loop: what was asked for in epoch 5 is answered, and epoch 7 begins with the same leader.
        links[0].reply.set_result(diverging_reply((LeaderEpoch(4), Offset(5)), 1))
        fetcher.follow(one, LeaderEpoch(7), is_in_sync=True)
        await until(lambda: len(links) == 2)
        assert one.cuts == []
        await fetcher.stop()

    asyncio.run(scenario())


def test_a_log_that_has_failed_holds_up_no_other_partition_of_its_leader() -> None:
    """Nobody will sync what it has."""

    async def scenario() -> None:
        fetcher, failed = new_fetcher(), partition(0)
        failed.is_safe = False
        failed.log = SimpleNamespace(failure="the disk could not be cut back", log_end=10)

        def refuse(records: memoryview) -> None:
            raise Refused(ErrorCode.kafka_storage_error, failed.log.failure)

        failed.copy = refuse
        fetcher.follow(failed, LeaderEpoch(1), is_in_sync=True)
        items = [Copied(Copy.topic_id, 0, 0, 10, 0, memoryview(b"records"), None)]
        async with asyncio.timeout(1):
            await fetcher._take(FollowerReply(0, 7, items))
        await fetcher.stop()

    asyncio.run(scenario())


def test_a_cut_that_fails_leaves_no_other_one_behind() -> None:
    async def scenario() -> None:
        fetcher = new_fetcher()
        failing, slow = partition(0), partition(1)
        go_on = asyncio.Event()

        async def fail(diverging: tuple[LeaderEpoch, Offset]) -> None:
            raise RuntimeError("can't start new thread")

        async def wait(diverging: tuple[LeaderEpoch, Offset]) -> None:
            await go_on.wait()
            slow.cuts.append(diverging)

        failing.truncate, slow.truncate = fail, wait
        for one in (failing, slow):
            fetcher.follow(one, LeaderEpoch(1), is_in_sync=True)
        taking = asyncio.create_task(fetcher._take(diverging_reply((LeaderEpoch(0), Offset(5)), 2)))
        done, _ = await asyncio.wait([taking], timeout=0.01)
        assert not done
        go_on.set()
        with pytest.raises(RuntimeError):
            await taking
        assert slow.cuts
        await fetcher.stop()

    asyncio.run(scenario())


def test_a_partition_that_is_still_being_cut_is_asked_for_when_that_is_done() -> None:
    async def scenario() -> None:
        fetcher = new_fetcher()
        one, other = partition(0), partition(1)
        one.is_truncating = True  # As the leader before wanted it.
        for each in (one, other):
            fetcher.follow(each, LeaderEpoch(2), is_in_sync=True)
        assert asked_for(fetcher) == [1]
        assert fetcher._wake_rested() == REST_S  # Then it is looked at again.
        assert asked_for(fetcher) == [1]
        one.is_truncating = False
        fetcher._wake_rested()
        assert asked_for(fetcher) == [0, 1]
        await fetcher.stop()

    asyncio.run(scenario())


def test_a_fetcher_that_fails_begins_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.partition.fetcher.FAULT_REST_S", 0.0)

    async def scenario() -> None:
        fetcher = new_fetcher()
        tries = []

        async def fail() -> None:
            tries.append(1)
            if len(tries) == 3:
                fetcher.drop(one)
            raise KeyError("a mistake")

        monkeypatch.setattr(fetcher, "_connect_and_copy", fail)
        one = partition(0)
        fetcher.follow(one, LeaderEpoch(1), is_in_sync=True)
        while fetcher._task is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(tries) == 3

    asyncio.run(scenario())
