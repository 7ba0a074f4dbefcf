"""Client quotas as such: which limit holds, who shares it, how long one waits, and what is remembered."""

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.config import BrokerConfig
from penstock.cluster.image import ClusterImage, QuotasImage
from penstock.cluster.quota_entity import DEFAULT, QuotaEntity
from penstock.server.client_quotas import ANONYMOUS, CLIENTS_MAX, ActiveQuotas, ClientQuotas

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


def images(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> dict[QuotaEntity, QuotasImage]:
    return {entity: QuotasImage(limits, 1) for entity, limits in quotas.items()}


def active(quotas: Mapping[QuotaEntity, Mapping[str, float]], clock: Clock | None = None) -> ActiveQuotas:
    return ActiveQuotas(images(quotas), BrokerConfig(), clock or Clock())


def for_client(kind: str, limit: float, clock: Clock | None = None) -> ActiveQuotas:
    return active({QuotaEntity(client_id="c"): {kind: limit}}, clock)


# Which limit

IN_ORDER = [
    QuotaEntity(ANONYMOUS, "c"),
    QuotaEntity(ANONYMOUS, DEFAULT),
    QuotaEntity(ANONYMOUS),
    QuotaEntity(DEFAULT, "c"),
    QuotaEntity(DEFAULT, DEFAULT),
    QuotaEntity(DEFAULT),
    QuotaEntity(client_id="c"),
    QuotaEntity(client_id=DEFAULT),
]


@given(st.sets(st.sampled_from(IN_ORDER)), st.sets(st.sampled_from(IN_ORDER)))
def test_the_first_quota_of_the_order_holds(there: set[QuotaEntity], other_kind: set[QuotaEntity]) -> None:
    """Also when an earlier entity has a quota of another kind alone."""
    quotas: dict[QuotaEntity, dict[str, float]] = {entity: {FETCH: 1.0} for entity in other_kind}
    for entity in there:
        quotas.setdefault(entity, {})[PRODUCE] = float(10 + IN_ORDER.index(entity))
    limit = active(quotas)._limit(PRODUCE, "c")
    if not there:
        assert limit is None
    else:
        assert limit is not None
        assert limit.amount_per_s == 10 + min(map(IN_ORDER.index, there))


def test_other_clients_fall_under_defaults_only() -> None:
    quotas = active({QuotaEntity(client_id="c"): {PRODUCE: 1.0}})
    assert quotas.on_produce("other", 10**9) == 0
    quotas = active({QuotaEntity(client_id="c"): {PRODUCE: 1.0}, QuotaEntity(client_id=DEFAULT): {PRODUCE: 100.0}})
    assert quotas.on_produce("other", 2000) == 10_000


@pytest.mark.parametrize("client_id", [None, ""])
def test_no_client_id_is_no_way_around_the_default(client_id: str | None) -> None:
    quotas = active({QuotaEntity(client_id=DEFAULT): {PRODUCE: 100.0}})
    assert quotas.on_produce(client_id, 2000) == 10_000


@pytest.mark.parametrize(
    ("entity", "is_shared"),
    [
        (QuotaEntity(client_id=DEFAULT), False),
        (QuotaEntity(ANONYMOUS, DEFAULT), False),
        (QuotaEntity(DEFAULT, DEFAULT), False),
        (QuotaEntity(ANONYMOUS), True),
        (QuotaEntity(DEFAULT), True),
    ],
)
def test_a_quota_of_a_user_is_shared_by_its_clients(entity: QuotaEntity, is_shared: bool) -> None:
    quotas = active({entity: {PRODUCE: 100.0}})
    assert quotas.on_produce("a", 1000) == 0
    assert (quotas.on_produce("b", 1000) > 0) is is_shared


def test_kinds_are_counted_apart() -> None:
    quotas = active({QuotaEntity(client_id="c"): {PRODUCE: 100.0, FETCH: 100.0}})
    assert quotas.on_produce("c", 1000) == 0
    assert quotas.on_fetch("c", 1000) == (0, False)
    assert quotas.on_produce("c", 100) == 1000


def test_other_limits_hold_at_once_and_what_was_used_stays_used() -> None:
    quotas = for_client(PRODUCE, 1000.0)
    assert quotas.on_produce("c", 10_000) == 0
    quotas.replace(images({QuotaEntity(client_id="c"): {PRODUCE: 500.0}}))
    assert quotas.on_produce("c", 0) == 10_000


# How long


@settings(deadline=None)
@given(st.integers(1000, 10**7), st.integers(1, 100), st.floats(0, 1))
def test_a_greedy_producer_is_held_to_its_rate(limit: int, requests_per_s: int, start_s: float) -> None:
    clock = Clock()
    clock.now_s += start_s
    quotas, count = for_client(PRODUCE, float(limit), clock), limit // requests_per_s + 1
    sent, began_s = 0, clock.now_s
    while clock.now_s < began_s + 60:
        sent += count
        clock.now_s += quotas.on_produce("c", count) / 1000 + 0.001
    allowed = limit * (clock.now_s - began_s + 10)
    assert 0.98 * allowed < sent <= 1.02 * allowed


def test_a_fetch_over_the_quota_gets_nothing_and_is_not_counted() -> None:
    clock = Clock()
    quotas = for_client(FETCH, 100.0, clock)
    assert quotas.on_fetch("c", 900) == (0, False)
    assert quotas.on_fetch("c", 300) == (2000, True)
    assert quotas.on_fetch("c", 100) == (0, False)


def test_a_fetch_larger_than_the_bucket_is_sent_once_that_is_drained() -> None:
    clock = Clock()
    quotas = for_client(FETCH, 100.0, clock)
    assert quotas.on_fetch("c", 5000) == (40_000, False)
    assert quotas.on_fetch("c", 5000) == (90_000, True)
    clock.now_s += 40
    assert quotas.on_fetch("c", 5000) == (50_000, True)
    clock.now_s += 10.1
    assert quotas.on_fetch("c", 5000) == (40_000, False)


def test_a_fetch_may_ask_for_what_fits_the_bucket() -> None:
    assert for_client(FETCH, 100.0).fetch_bytes_max("c") == 1000
    assert for_client(FETCH, 100.0).fetch_bytes_max("other") == 2**31 - 1
    assert for_client(FETCH, 1e15).fetch_bytes_max("c") == 2**31 - 1


def test_request_time_is_counted_in_per_cent_and_waited_for_a_second_at_most() -> None:
    quotas = for_client(REQUEST, 10.0)
    quotas.on_request_time("c", 0.99)
    assert quotas.request_throttle_ms("c") == 0
    quotas.on_request_time("c", 0.02)
    assert quotas.request_throttle_ms("c") == pytest.approx(100, abs=1)
    quotas.on_request_time("c", 100.0)
    assert quotas.request_throttle_ms("c") == 1000
    assert quotas.request_throttle_ms("other") == 0


def test_the_longest_wait_fits_the_reply() -> None:
    assert for_client(PRODUCE, 1.0).on_produce("c", 10**12) == 2**31 - 1


def test_only_the_steps_of_work_are_counted_not_what_it_waits_for() -> None:
    clock = Clock()
    quotas = for_client(REQUEST, 10.0, clock)

    async def work() -> str:
        clock.now_s += 0.3
        try:
            await asyncio.sleep(0)
            await waiting
        except ValueError:
            clock.now_s += 0.4
        return "done"

    async def scenario() -> None:
        nonlocal waiting
        waiting = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(_awaited(quotas.timed("c", work())))
        for _ in range(5):
            await asyncio.sleep(0)
        clock.now_s += 3.0
        waiting.set_exception(ValueError())
        assert await task == "done"

    waiting: asyncio.Future[None]
    asyncio.run(scenario())
    (bucket,) = quotas._buckets.values()
    assert bucket.level(clock.now_s, limit=10.0) == pytest.approx(40)  # The first 30 have drained while it waited.


async def _awaited(work: object) -> object:
    return await work  # type: ignore[misc]


def test_work_can_be_cancelled() -> None:
    quotas = for_client(REQUEST, 10.0)

    async def scenario() -> None:
        task = asyncio.ensure_future(_awaited(quotas.timed("c", asyncio.sleep(100))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


# Memory, and following the image


def test_clients_are_remembered_up_to_a_limit() -> None:
    quotas = active({QuotaEntity(client_id=DEFAULT): {PRODUCE: 1.0}})
    for number in range(CLIENTS_MAX + 500):
        quotas.on_produce(f"client {number}", 1)
        quotas.on_produce("loud", 1)
    assert len(quotas._buckets) == CLIENTS_MAX
    assert len(quotas._limits) <= CLIENTS_MAX
    assert quotas.on_produce("loud", 1) > 0


def test_without_quotas_of_clients_nothing_is_active() -> None:
    quotas = ClientQuotas(BrokerConfig(), Clock())
    assert quotas.active is None
    quotas.apply(ClusterImage(client_quotas=images({QuotaEntity(ip=DEFAULT): {"connection_creation_rate": 1.0}})))
    assert quotas.active is None
    with_quota = ClusterImage(client_quotas=images({QuotaEntity(client_id="c"): {PRODUCE: 1.0}}))
    quotas.apply(with_quota)
    first = quotas.active
    assert first is not None
    quotas.apply(ClusterImage(client_quotas=images({QuotaEntity(client_id="c"): {PRODUCE: 2.0}})))
    assert quotas.active is first
    quotas.apply(ClusterImage())
    assert quotas.active is None
