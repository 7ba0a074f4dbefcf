"""ListGroups: the groups that this broker coordinates. v4 filters by state (KIP-518), v5 by type (KIP-848)."""

from penstock.base.errors import ErrorCode, Refused
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.LIST_GROUPS, versions=range(6))
def list_groups(context: Context, header: RequestHeader, request: Struct) -> Struct:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    try:
        shards = context.groups.shards()
    except Refused as refused:
        return Struct(error_code=refused.code)
    return Struct(
        error_code=ErrorCode.none,
        groups=[
            Struct(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for shard in shards
            for group in shard.list_groups()
            if (not states or group.state.lower() in states) and (not types or group.group_type.lower() in types)
        ],
    )
