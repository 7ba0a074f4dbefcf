"""Decisions about client quotas: image and alterations in, writes, answers and descriptions out."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import after, cluster

from penstock.base.errors import ErrorCode, Refused
from penstock.cluster import quota_plan, records
from penstock.cluster.image import ClusterImage
from penstock.cluster.quota_entity import DEFAULT, QuotaEntity
from penstock.cluster.quota_plan import (
    AlterQuota,
    Component,
    Match,
    QuotaOperation,
    QuotaResult,
    described_quotas,
    plan_alter_quotas,
)
from penstock.cluster.store.base import Check, Delete, Put

CLIENT: tuple[Component, ...] = (("client-id", "c"),)
KEY = "producer_byte_rate"


def alter(image: ClusterImage, components: tuple[Component, ...], **limits: float | None) -> tuple[ClusterImage, Any]:
    """The image after it, and the answer."""
    operations = [QuotaOperation(key, value) for key, value in limits.items()]
    plan = plan_alter_quotas(image, [AlterQuota(components, operations)])
    return after(image, plan.writes), plan.results[0]


def limits_of(image: ClusterImage, entity: QuotaEntity) -> dict[str, float]:
    return dict(image.client_quotas[entity].limits) if entity in image.client_quotas else {}


def test_a_quota_is_set_changed_and_removed() -> None:
    entity = QuotaEntity(client_id="c")
    image, answer = alter(cluster(), CLIENT, producer_byte_rate=1024.0, request_percentage=12.5)
    assert answer == QuotaResult(CLIENT)
    assert limits_of(image, entity) == {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    image, _ = alter(image, CLIENT, producer_byte_rate=2048.0)
    assert limits_of(image, entity) == {"producer_byte_rate": 2048.0, "request_percentage": 12.5}
    image, _ = alter(image, CLIENT, producer_byte_rate=None)
    image, _ = alter(image, CLIENT, request_percentage=None)
    assert image.client_quotas == {}


def test_each_write_is_checked_against_what_was_seen() -> None:
    image, _ = alter(cluster(), CLIENT, producer_byte_rate=1.0)
    entity = QuotaEntity(client_id="c")
    version = image.client_quotas[entity].version
    plan = plan_alter_quotas(image, [AlterQuota(CLIENT, [QuotaOperation(KEY, None)])])
    assert plan.checks == [Check("/config/clients/c", version)]
    assert plan.writes == [Delete("/config/clients/c")]


def test_what_changes_nothing_writes_nothing() -> None:
    image, _ = alter(cluster(), CLIENT, producer_byte_rate=1.0)
    for value in (1.0, None):
        key = KEY if value else "consumer_byte_rate"
        plan = plan_alter_quotas(image, [AlterQuota(CLIENT, [QuotaOperation(key, value)])])
        assert plan.writes == []
        assert plan.results == [QuotaResult(CLIENT)]


@pytest.mark.parametrize(
    "components",
    [
        (),
        (("topic", "t"),),
        (("user", ""),),
        (("user", "a"), ("user", "b")),
        (("ip", "10.0.0.1"), ("user", "a")),
        (("ip", "10.0.0.1"), ("client-id", None)),
        (("ip", "localhost"),),
        (("ip", "10.0.0.256"),),
        (("client-id", "c" * 1001),),
    ],
)
def test_entities_that_do_not_exist_are_refused(components: tuple[Component, ...]) -> None:
    key = "connection_creation_rate" if components and components[0][0] == "ip" else KEY
    image, answer = alter(cluster(), components, **{key: 1.0})
    assert (answer.components, answer.code) == (components, ErrorCode.invalid_request)
    assert image.client_quotas == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, 0.0),
        (KEY, -1.0),
        (KEY, 0.5),
        (KEY, 2.0**64),
        (KEY, math.nan),
        (KEY, math.inf),
        ("request_percentage", -1.0),
        ("request_percentage", math.nan),
        ("connection_creation_rate", 1.0),
        ("controller_mutation_rate", 1.0),
        ("nonsense", 1.0),
    ],
)
def test_quotas_that_mean_nothing_are_refused(key: str, value: float) -> None:
    image, answer = alter(cluster(), CLIENT, **{"consumer_byte_rate": 5.0, key: value})
    assert answer.code is ErrorCode.invalid_request
    assert answer.message
    assert image.client_quotas == {}, "all operations or none"


def test_an_address_has_a_rate_of_connections_alone() -> None:
    for key, code in ((KEY, ErrorCode.invalid_request), ("connection_creation_rate", ErrorCode.none)):
        assert alter(cluster(), (("ip", "10.0.0.1"),), **{key: 10.0})[1].code is code
    assert alter(cluster(), (("ip", None),), connection_creation_rate=1.5)[1].code is ErrorCode.invalid_request


def test_an_address_has_one_spelling() -> None:
    image = cluster()
    for text in ("2001:DB8:0:0::1", "::ffff:10.0.0.1"):
        image, _ = alter(image, (("ip", text),), connection_creation_rate=10.0)
    assert set(image.client_quotas) == {QuotaEntity(ip="2001:db8::1"), QuotaEntity(ip="10.0.0.1")}


def test_what_is_in_a_request_twice_is_refused() -> None:
    one = AlterQuota(CLIENT, [QuotaOperation(KEY, 1.0)])
    plan = plan_alter_quotas(cluster(), [one, one])
    assert [(result.code, len(plan.writes)) for result in plan.results] == [(ErrorCode.invalid_request, 0)]
    both = (("user", "u"), ("client-id", "c"))
    plan = plan_alter_quotas(cluster(), [one._replace(components=both), one._replace(components=both[::-1])])
    assert [result.code for result in plan.results] == [ErrorCode.none, ErrorCode.invalid_request]
    plan = plan_alter_quotas(cluster(), [AlterQuota(CLIENT, [QuotaOperation(KEY, 1.0), QuotaOperation(KEY, 2.0)])])
    assert plan.results[0].code is ErrorCode.invalid_request


def test_one_refusal_does_not_stop_others() -> None:
    good, bad = AlterQuota(CLIENT, [QuotaOperation(KEY, 1.0)]), AlterQuota((), [QuotaOperation(KEY, 1.0)])
    plan = plan_alter_quotas(cluster(), [bad, good])
    assert [result.code for result in plan.results] == [ErrorCode.invalid_request, ErrorCode.none]
    assert plan.writes == [Put("/config/clients/c", b'{"producer_byte_rate":1.0}')]


def test_the_number_of_entities_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_plan, "ENTITIES_MAX", 2)
    image = cluster()
    for name in "ab":
        image, _ = alter(image, (("client-id", name),), producer_byte_rate=1.0)
    assert alter(image, CLIENT, producer_byte_rate=1.0)[1].code is ErrorCode.policy_violation
    assert alter(image, (("client-id", "a"),), producer_byte_rate=2.0)[1].code is ErrorCode.none


names = st.none() | st.text(max_size=20)
clients = st.tuples(names, names).filter(lambda pair: pair != (None, None)).map(lambda pair: QuotaEntity(*pair))
addresses = (st.ip_addresses().map(str) | st.just(DEFAULT)).map(lambda ip: QuotaEntity(ip=ip))


@given(clients | addresses)
def test_a_key_in_the_store_is_that_of_one_entity(entity: QuotaEntity) -> None:
    assert records.parse_quota_key(records.quota_key(entity)) == entity


# Descriptions

ALL = [
    QuotaEntity("u", "c"),
    QuotaEntity("u"),
    QuotaEntity("u", DEFAULT),
    QuotaEntity(DEFAULT),
    QuotaEntity(client_id="c"),
    QuotaEntity(client_id=DEFAULT),
    QuotaEntity(ip="10.0.0.1"),
    QuotaEntity(ip=DEFAULT),
]


@pytest.fixture
def everything() -> ClusterImage:
    image = cluster()
    for entity in ALL:
        key = KEY if entity.ip is None else "connection_creation_rate"
        image, answer = alter(image, tuple((kind, name or None) for kind, name in entity.components()), **{key: 7.0})
        assert answer.code is ErrorCode.none
    return image


@pytest.mark.parametrize(
    ("matches", "is_strict", "expected"),
    [
        ([], False, ALL),
        ([], True, []),
        ([Match("user", "u")], False, ALL[:3]),
        ([Match("user", "u")], True, ALL[1:2]),
        ([Match("user", None)], True, [ALL[1], ALL[3]]),
        ([Match("user", DEFAULT)], False, [ALL[3]]),
        ([Match("client-id", None)], True, ALL[4:6]),
        ([Match("client-id", "c")], False, [ALL[0], ALL[4]]),
        ([Match("user", "u"), Match("client-id", DEFAULT)], True, [ALL[2]]),
        ([Match("ip", "::ffff:10.0.0.1")], True, [ALL[6]]),
        ([Match("ip", DEFAULT)], True, [ALL[7]]),
        ([Match("ip", None)], False, ALL[6:]),
    ],
)
def test_descriptions_show_what_matches(
    everything: ClusterImage, matches: list[Match], is_strict: bool, expected: list[QuotaEntity]
) -> None:
    found = described_quotas(everything, matches, is_strict=is_strict)
    assert {entity for entity, _ in found} == set(expected)
    assert all(list(limits.values()) == [7.0] for _, limits in found)


@pytest.mark.parametrize(
    ("matches", "code"),
    [
        ([Match("user", "a"), Match("user", "b")], ErrorCode.invalid_request),
        ([Match("user", "a"), Match("ip", None)], ErrorCode.invalid_request),
        ([Match("ip", "somewhere")], ErrorCode.invalid_request),
        ([Match("", None)], ErrorCode.invalid_request),
        ([Match("topic", None)], ErrorCode.unsupported_version),
    ],
)
def test_filters_that_contradict_themselves_are_refused(matches: list[Match], code: ErrorCode) -> None:
    with pytest.raises(Refused) as refused:
        described_quotas(cluster(), matches, is_strict=False)
    assert refused.value.code is code
