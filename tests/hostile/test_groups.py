"""S14: members and commits of groups that are too late, too early, too large, or somebody else's."""

import select
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.member_budget import MEMBER_BYTES
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

from .broker_process import BrokerProcess
from .client import Client, eventually, framed, read_reply, request_frame
from .group_client import commit, committed, find_coordinator, heartbeat, join, join_fields, leave, sync

PATTERN_S_MAX = 2.0  # Of the broker's processor.
CROWD = 400  # Members, with so much to say each:
SUBSCRIPTION = bytes(100_000)

_numbers = count(1)


@pytest.fixture
def group(client: Client) -> str:
    name = f"group-{next(_numbers)}"
    assert find_coordinator(client, name) == 0
    return name


@pytest.fixture
def member(client: Client, group: str) -> Iterator[Any]:
    """The only member of a stable group, as JoinGroup answered it."""
    joined = join(client, group)
    assert joined.error_code == 0
    assert sync(client, group, joined).error_code == 0
    yield joined
    leave(client, group, (joined.member_id, None))


def test_s14_a_commit_of_an_old_generation_is_refused(client: Client, topic: str, group: str, member: Any) -> None:
    ours = {"member_id": member.member_id, "generation": member.generation_id}
    assert commit(client, group, topic, offset=5, **ours) == [0]
    again = join(client, group, member.member_id)  # The leader rejoins: a new generation.
    assert again.generation_id == member.generation_id + 1
    assert sync(client, group, again).error_code == 0
    assert commit(client, group, topic, offset=3, **ours) == [ErrorCode.illegal_generation]
    assert heartbeat(client, group, member.member_id, member.generation_id) == ErrorCode.illegal_generation
    for wrong in (again.generation_id + 1, 0, -2, 2**31 - 1):
        codes = commit(client, group, topic, offset=3, member_id=member.member_id, generation=wrong)
        assert codes == [ErrorCode.illegal_generation], wrong
    assert committed(client, group, topic) == [5]


def test_s14_an_unknown_member_is_refused_everywhere(client: Client, topic: str, group: str, member: Any) -> None:
    generation = member.generation_id
    for name in ("nobody", "", "\0", member.member_id + " ", "x" * 30_000):
        codes = commit(client, group, topic, member_id=name, generation=generation)
        assert codes == [ErrorCode.unknown_member_id], name
        assert heartbeat(client, group, name, generation) == ErrorCode.unknown_member_id, name
    assert join(client, group, "nobody").error_code == ErrorCode.unknown_member_id
    assert leave(client, group, ("nobody", None)) == [ErrorCode.unknown_member_id]
    assert commit(client, group, topic) == [ErrorCode.unknown_member_id]  # Without a member, into a live group.
    assert committed(client, group, topic) == [-1]


def test_s14_the_older_of_two_with_one_instance_id_is_fenced(client: Client, topic: str, group: str) -> None:
    first = join(client, group, instance_id="seat")
    assert sync(client, group, first, instance_id="seat").error_code == 0
    second = join(client, group, instance_id="seat")  # Takes the seat, and the assignment with it.
    assert (second.error_code, second.generation_id) == (0, first.generation_id)
    assert second.member_id != first.member_id
    old = {"member_id": first.member_id, "generation": first.generation_id, "instance_id": "seat"}
    assert commit(client, group, topic, **old) == [ErrorCode.fenced_instance_id]
    assert heartbeat(client, group, first.member_id, first.generation_id, "seat") == ErrorCode.fenced_instance_id
    assert sync(client, group, first, instance_id="seat").error_code == ErrorCode.fenced_instance_id
    assert join(client, group, first.member_id, instance_id="seat").error_code == ErrorCode.fenced_instance_id
    assert leave(client, group, (first.member_id, "seat")) == [ErrorCode.fenced_instance_id]
    assert commit(client, group, topic, **{**old, "member_id": second.member_id}) == [0]
    assert leave(client, group, ("", "seat")) == [0]


@pytest.mark.parametrize("session_ms", [1, 0, -1, -(2**31), 5_999, 1_800_001, 2**31 - 1])
def test_s14_a_session_timeout_out_of_bounds(client: Client, group: str, session_ms: int) -> None:
    assert join(client, group, session_ms=session_ms).error_code == ErrorCode.invalid_session_timeout


@pytest.mark.parametrize("version", [0, 3, 5, 9])
def test_s14_an_empty_group_id(client: Client, group: str, version: int) -> None:
    assert join(client, "", version=version).error_code == ErrorCode.invalid_group_id
    assert heartbeat(client, "", "m", 1) == ErrorCode.invalid_group_id


def test_s14_metadata_of_a_commit_has_a_limit(client: Client, topic: str, group: str) -> None:
    assert commit(client, group, topic, offset=4, metadata="m" * 4096) == [0]
    for metadata in ("m" * 4097, "m" * 5000, "é" * 2049):
        codes = commit(client, group, topic, offset=9, metadata=metadata)
        assert codes == [ErrorCode.offset_metadata_too_large]
    assert committed(client, group, topic) == [4]


@pytest.mark.parametrize("size", [(1 << 20) + 1, 10_000_000, 90_000_000])
def test_s14_a_large_subscription(client: Client, group: str, size: int) -> None:
    joined = join(client, group, instance_id="large", metadata=bytes(size))
    assert joined.error_code == ErrorCode.invalid_request


def test_s14_many_protocols(client: Client, group: str) -> None:
    assert join(client, group, instance_id="many", protocols=101).error_code == ErrorCode.invalid_request
    joined = join(client, group, instance_id="many", metadata=bytes(20_000), protocols=60)
    assert joined.error_code == ErrorCode.invalid_request  # 1.2 MB in all.


def test_s14_many_members_with_large_subscriptions(broker: BrokerProcess, client: Client, group: str) -> None:
    """Each is small enough; all of them together are not. Who is too many is refused, and the memory stays bounded."""
    budget = GroupConfig().members_bytes_max
    room = budget // (len(SUBSCRIPTION) + MEMBER_BYTES)
    before = broker.rss_bytes()
    names = [f"{group}-{number}" for number in range(CROWD)]
    with ExitStack() as stack:
        members = [stack.enter_context(Client(broker.port)) for _ in names]
        for name, member in zip(names, members, strict=True):
            fields = join_fields(name, instance_id="i", metadata=SUBSCRIPTION, session_ms=600_000)
            member.send(framed(request_frame(ApiKey.JOIN_GROUP, 9, Struct(**fields))))
        # Those who are too many are answered at once, the others when the first rebalance of their group ends.
        poll = select.poll()  # `select.select` knows no descriptor above 1023.
        for member in members:
            poll.register(member, select.POLLIN)
        eventually(lambda: len(poll.poll(0)) >= CROWD - room, "the last is refused")
        growth = broker.rss_bytes() - before
        codes = Counter(read_reply(ApiKey.JOIN_GROUP, 9, member.receive(), 1).error_code for member in members)
        assert codes == {ErrorCode.none: room, ErrorCode.group_max_size_reached: CROWD - room}
        left = [leave(client, name, ("", "i")) for name in names]
    assert left.count([0]) == room
    assert growth <= 2 * budget, f"memory grew by {growth >> 20} MiB"


def consumer_heartbeat(client: Client, group: str, epoch: int = 0, **fields: Any) -> Any:
    values = {
        "group_id": group,
        "member_id": "m",
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
        **fields,
    }
    return client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **values)


def test_s14_patterns_that_are_meant_to_hurt(client: Client, group: str, broker: BrokerProcess) -> None:
    for number in range(20):
        client.create_topic(f"{'a' * 240}-{group[-2:]}-{number}")
    for pattern in ("(a+)+$", "(a|aa)+b", "(x+x+)+y", ".*.*.*.*.*.*.*.*z"):
        before_s = broker.cpu_s()
        joined = consumer_heartbeat(client, group, subscribed_topic_regex=pattern)
        assert joined.error_code == 0
        assert broker.cpu_s() - before_s < PATTERN_S_MAX
    assert consumer_heartbeat(client, group, -1).error_code == 0
    before_bytes = broker.rss_bytes()
    for pattern in ("(a+)+" * 2_000_000, "((a{100}){100}){100}", "(.*a.{90}){9}", "[", "(?<=a)b", "\\1"):
        refused = consumer_heartbeat(client, group, subscribed_topic_regex=pattern)
        assert refused.error_code == ErrorCode.invalid_regular_expression, pattern[:20]
        assert 0 < len(refused.error_message) < 1_000
    assert broker.rss_bytes() - before_bytes < 64 << 20


def test_s14_a_member_epoch_that_is_wrong_is_fenced(client: Client, topic: str, group: str) -> None:
    joined = consumer_heartbeat(client, group, subscribed_topic_names=[topic])
    assert (joined.error_code, joined.member_epoch) == (0, 1)
    for epoch in (2, 2**31 - 1):
        assert consumer_heartbeat(client, group, epoch).error_code == ErrorCode.fenced_member_epoch
    for epoch in (-3, -(2**31)):
        assert consumer_heartbeat(client, group, epoch).error_code == ErrorCode.invalid_request
    claimed = [Struct(topic_id=UUID(int=number), partitions=list(range(1_000))) for number in range(1, 90)]
    assert consumer_heartbeat(client, group, 1, topic_partitions=claimed).error_code == 0
    assert consumer_heartbeat(client, group, 1, member_id="other").error_code == ErrorCode.unknown_member_id
    assert consumer_heartbeat(client, group, 1, server_assignor="none").error_code == ErrorCode.unsupported_assignor
    names = ["n" * 249] * 100 + [f"{number:0249}" for number in range(10_000)]
    assert consumer_heartbeat(client, group, 1, subscribed_topic_names=names).error_code == ErrorCode.invalid_request
    assert consumer_heartbeat(client, group, -1).error_code == 0


def test_a_commit_that_takes_more_than_one_batch(client: Client, topic: str, group: str) -> None:
    offsets = list(range(30_000))
    items = [
        Struct(partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m" * 40)
        for offset in offsets
    ]
    answer = client.ask(
        ApiKey.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[Struct(name=topic, partitions=items)],
    )
    assert {int(item.error_code) for item in answer.topics[0].partitions} == {0}
    assert committed(client, group, topic) == [offsets[-1]]
