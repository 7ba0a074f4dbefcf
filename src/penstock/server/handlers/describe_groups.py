"""DescribeGroups: state, protocol and members of groups.

A group that is not there is Dead; from v6 on that is an error (KIP-1043).
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

NOT_FOUND_VERSION = 6


@handler(ApiKey.DESCRIBE_GROUPS, versions=range(7))
def describe_groups(context: Context, header: RequestHeader, request: Struct) -> Struct:
    return Struct(groups=[_describe(context, header.version, group_id) for group_id in dict.fromkeys(request.groups)])


def _describe(context: Context, version: int, group_id: str) -> Struct:
    code, message = ErrorCode.none, None
    try:
        view = context.groups.look(group_id, lambda shard: shard.describe(group_id))
        if view is None and version >= NOT_FOUND_VERSION:
            code, message = ErrorCode.group_id_not_found, f"Group {group_id[:249]} not found."
    except Refused as refused:
        view, code = None, refused.code
    if view is None:
        is_known_dead = code in (ErrorCode.none, ErrorCode.group_id_not_found)
        return Struct(
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state="Dead" if is_known_dead else "",
            protocol_type="",
            protocol_data="",
        )
    return Struct(
        error_code=code,
        group_id=group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol_name,
        members=[
            Struct(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in view.members
        ],
    )
