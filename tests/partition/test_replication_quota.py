from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import NodeId
from penstock.partition.replication_quota import BURST_S, NO_LIMIT, ReplicationQuota, ReplicationQuotas

BATCH_BYTES_MAX = 5000


def throttled(rate: int) -> ReplicationQuota:
    quota = ReplicationQuota(NodeId(1))
    quota.set_rate(rate)
    quota.set_topic("t", ["*"])
    return quota


@given(
    rate=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(1, BATCH_BYTES_MAX)), max_size=60),
)
def test_never_more_than_the_rate_a_second_s_worth_and_a_batch(rate: int, steps: list[tuple[float, int]]) -> None:
    """Whoever sends whole batches while there is room, the first of them whatever its size."""
    quota, now_s, total = throttled(rate), 100.0, 0
    for seconds, batch_bytes in steps:
        now_s += seconds
        while (room_bytes := quota.room_bytes(now_s)) > 0:
            count = max(batch_bytes, room_bytes // batch_bytes * batch_bytes)
            quota.take(count, now_s)
            total += count
        assert total <= rate * (now_s - 100 + BURST_S) + BATCH_BYTES_MAX
        wait_s = quota.wait_s(now_s)
        assert wait_s <= BATCH_BYTES_MAX / rate + 1e-6
        assert quota.room_bytes(now_s + wait_s + 2 / rate) > 0


@given(rate=st.integers(100, 10_000), looks_per_s=st.integers(2, 50))
def test_who_looks_often_enough_gets_the_whole_rate(rate: int, looks_per_s: int) -> None:
    quota, total = throttled(rate), 0
    for look in range(10 * looks_per_s):
        room_bytes = quota.room_bytes(100 + look / looks_per_s)
        quota.take(room_bytes, 100 + look / looks_per_s)
        total += room_bytes
    assert total >= rate * 9.5


def test_only_the_replicas_that_are_named_and_ours() -> None:
    quota = ReplicationQuota(NodeId(1))
    quota.set_rate(10)
    assert not quota.is_active
    quota.set_topic("some", ["0:1", "1:2", "3:1"])
    quota.set_topic("all", ["*"])
    quota.set_topic("others", ["0:2"])
    assert quota.is_active
    assert [number for number in range(4) if quota.is_throttled("some", number)] == [0, 3]
    assert quota.is_throttled("all", 7)
    assert not quota.is_throttled("others", 0)
    assert not quota.is_throttled("none", 0)
    quota.set_topic("some", [])
    quota.set_topic("all", [])
    assert not quota.is_active


def test_without_a_rate_nothing_is_throttled_and_nothing_counted() -> None:
    quotas = ReplicationQuotas(NodeId(1))
    quotas.set_topic("t", leader=["*"], follower=["*"])
    for quota in (quotas.leader, quotas.follower):
        quota.take(10**12, 1.0)
        assert not quota.is_throttled("t", 0)
        assert quota.wait_s(1.0) == 0
        assert quota.room_bytes(1.0) == 2**31 - 1
    quotas.set_rates(leader=5, follower=NO_LIMIT)
    assert quotas.leader.is_throttled("t", 0)
    assert not quotas.follower.is_throttled("t", 0)
    assert quotas.leader.room_bytes(1.0) == 5
    quotas.set_topic("t")
    assert not quotas.leader.is_active
