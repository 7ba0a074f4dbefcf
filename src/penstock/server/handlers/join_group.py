"""JoinGroup: take part in the next generation of a group; answered when all its members are there.

v1 adds the rebalance timeout, v4 gives a member its id first (KIP-394), v5 adds static members (KIP-345), v7 the
protocol type, v8 the reason (ignored), v9 lets the leader skip the assignment (KIP-814).
"""

from penstock.base.errors import Refused
from penstock.coordinator.group.commands import JoinGroup, Protocol
from penstock.coordinator.group.replies import JoinReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

NULLABLE_PROTOCOL_VERSION = 7


@handler(ApiKey.JOIN_GROUP, versions=range(10))
async def join_group(context: Context, header: RequestHeader, request: Struct) -> Struct:
    command = JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=header.client_id or "",
        client_host=f"/{header.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(item.name, item.metadata) for item in request.protocols),
        version=header.version,
    )
    try:
        reply = await context.groups.call(request.group_id, lambda shard, token, now: shard.join(command, token, now))
    except Refused as refused:
        reply = JoinReply(error_code=refused.code, member_id=request.member_id)
    assert isinstance(reply, JoinReply)
    name = reply.protocol_name
    if name is None and header.version < NULLABLE_PROTOCOL_VERSION:
        name = ""
    return Struct(
        error_code=reply.error_code,
        generation_id=reply.generation_id,
        protocol_type=reply.protocol_type,
        protocol_name=name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            Struct(member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata)
            for member in reply.members
        ],
    )
