"""DescribeClientQuotas: the quotas of users, client ids and addresses (KIP-546).

A filter names entity types, each with an exact name, the default, or any. Strict: entities with other types besides are
left out. v1 is flexible and nothing else.
"""

from enum import IntEnum

from penstock.base.errors import ErrorCode, Refused
from penstock.cluster.quota_entity import DEFAULT
from penstock.cluster.quota_plan import Match, described_quotas
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


class MatchType(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


@handler(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=range(2))
def describe_client_quotas(context: Context, header: RequestHeader, request: Struct) -> Struct:
    try:
        matches = [_match(component) for component in request.components]
        found = described_quotas(context.metadata.image, matches, is_strict=request.strict)
    except Refused as error:
        return Struct(error_code=error.code, error_message=error.message, entries=None)
    entries = [
        Struct(
            entity=[Struct(entity_type=kind, entity_name=name or None) for kind, name in entity.components()],
            values=[Struct(key=key, value=value) for key, value in limits.items()],
        )
        for entity, limits in found
    ]
    return Struct(error_code=ErrorCode.none, error_message=None, entries=entries)


def _match(component: Struct) -> Match:
    kind, name = component.entity_type, component.match
    if component.match_type == MatchType.EXACT:
        if not name:
            raise Refused(ErrorCode.invalid_request, f"An exact match of {kind[:100]!a} needs a name")
        return Match(kind, name)
    if component.match_type not in (MatchType.DEFAULT, MatchType.ANY):
        raise Refused(ErrorCode.invalid_request, f"There is no match type {component.match_type}")
    if name is not None:
        raise Refused(ErrorCode.invalid_request, f"A name of {kind[:100]!a} goes with an exact match only")
    return Match(kind, DEFAULT if component.match_type == MatchType.DEFAULT else None)
