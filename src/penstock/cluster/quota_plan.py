"""Decisions about client quotas (KIP-546): which are set and removed, and which a description shows.

Pure: an image and alterations in; store writes and one result per entity out. Only quotas that are enforced can be set.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.base.config_key import INT_MAX, LONG_MAX
from penstock.base.errors import ErrorCode, Refused
from penstock.cluster import records
from penstock.cluster.image import NO_QUOTAS, ClusterImage
from penstock.cluster.plan import Plan
from penstock.cluster.quota_entity import ENTITY_TYPES, IP, QuotaEntity, canonical_ip, make_entity
from penstock.cluster.store.base import Check, Delete, Put

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONNECTION_CREATION_RATE = "connection_creation_rate"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"

ENTITIES_MAX = 10_000  # The image copies its map of them with each change: a millisecond.

# The largest whole number that each may be; None: any number.
_CLIENT_KEYS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    REQUEST_PERCENTAGE: None,
}
_IP_KEYS: Mapping[str, int | None] = {CONNECTION_CREATION_RATE: INT_MAX}

Component = tuple[str, str | None]  # An entity type, and a name or None for the default.


class QuotaOperation(NamedTuple):
    key: str
    value: float | None  # None removes the quota.


class AlterQuota(NamedTuple):
    components: tuple[Component, ...]
    operations: Sequence[QuotaOperation]


class QuotaResult(NamedTuple):
    components: tuple[Component, ...]
    code: ErrorCode = ErrorCode.none
    message: str | None = None


class Match(NamedTuple):
    """One condition of a description: an entity has `kind`, and under this name unless `name` is None."""

    kind: str
    name: str | None


def plan_alter_quotas(image: ClusterImage, alterations: Sequence[AlterQuota]) -> Plan[QuotaResult]:
    """Entities altered and refused; for one entity either all operations take effect or none."""
    plan: Plan[QuotaResult] = Plan()
    counts = Counter(alteration.components for alteration in alterations)
    for components, alteration in {item.components: item for item in alterations}.items():
        try:
            if counts[components] > 1:
                raise Refused(ErrorCode.invalid_request, "The entity is in the request more than once")
            _plan_one(plan, image, alteration)
        except Refused as error:
            plan.results.append(QuotaResult(components, error.code, error.message))
        else:
            plan.results.append(QuotaResult(components))
    return plan


def _plan_one(plan: Plan[QuotaResult], image: ClusterImage, alteration: AlterQuota) -> None:
    entity = make_entity(alteration.components)
    old = image.client_quotas.get(entity, NO_QUOTAS)
    keys = [operation.key for operation in alteration.operations]
    if len(set(keys)) != len(keys):
        raise Refused(ErrorCode.invalid_request, "A quota is in the request more than once")
    limits = dict(old.limits)
    for key, value in alteration.operations:
        if value is None:
            limits.pop(key, None)
        else:
            limits[key] = _checked(entity, key, value)
    if limits == old.limits:
        return
    if not old.limits and len(image.client_quotas) + len(plan.writes) >= ENTITIES_MAX:
        raise Refused(ErrorCode.policy_violation, f"There are quotas of {ENTITIES_MAX} entities already")
    stored_as = records.quota_key(entity)
    if any(write.key == stored_as for write in plan.writes):
        raise Refused(ErrorCode.invalid_request, "The entity is in the request more than once")
    plan.checks.append(Check(stored_as, old.version))
    plan.writes.append(Put(stored_as, records.encode(limits)) if limits else Delete(stored_as))


def _checked(entity: QuotaEntity, key: str, value: float) -> float:
    if key == CONTROLLER_MUTATION_RATE:
        raise Refused(ErrorCode.invalid_request, f"{key} cannot be set: the rate of changes to topics is not limited")
    keys = _CLIENT_KEYS if entity.ip is None else _IP_KEYS
    if key not in keys:
        raise Refused(ErrorCode.invalid_request, f"{key[:100]!a} is no quota of this entity, only {', '.join(keys)}")
    if not math.isfinite(value) or value <= 0:
        raise Refused(ErrorCode.invalid_request, f"{key} is {value}, allowed is more than 0")
    value_max = keys[key]
    if value_max is not None and (value > value_max or value != int(value)):
        raise Refused(ErrorCode.invalid_request, f"{key} is {value}, allowed is a whole number up to {value_max}")
    return value


def described_quotas(
    image: ClusterImage, matches: Sequence[Match], *, is_strict: bool
) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """The entities that fulfil all of `matches`, and have nothing else if `is_strict`; Refused when they contradict."""
    kinds = [match.kind for match in matches]
    for kind in kinds:
        if kind not in ENTITY_TYPES:
            code = ErrorCode.unsupported_version if kind else ErrorCode.invalid_request
            raise Refused(code, f"There is no entity type {kind[:100]!a}")
    if len(set(kinds)) != len(kinds):
        raise Refused(ErrorCode.invalid_request, "An entity type is in the filter more than once")
    if IP in kinds and len(kinds) > 1:
        raise Refused(ErrorCode.invalid_request, "An address cannot be combined with a user or a client id")
    wanted = {kind: canonical_ip(name) if kind == IP and name else name for kind, name in matches}
    found = []
    for entity, quotas in image.client_quotas.items():
        names = dict(entity.components())
        if is_strict and names.keys() != wanted.keys():
            continue
        if all(kind in names and name in (None, names[kind]) for kind, name in wanted.items()):
            found.append((entity, quotas.limits))
    return found
