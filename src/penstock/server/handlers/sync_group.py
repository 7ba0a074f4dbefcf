"""SyncGroup: the leader hands in the assignment, every member gets its part once that is stored.

v3 adds static members, v5 checks the protocol that the member believes in.
"""

from penstock.base.errors import Refused
from penstock.coordinator.group.commands import SyncGroup
from penstock.coordinator.group.replies import SyncReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.SYNC_GROUP, versions=range(6))
async def sync_group(context: Context, header: RequestHeader, request: Struct) -> Struct:
    command = SyncGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={item.member_id: item.assignment for item in request.assignments},
    )
    try:
        reply = await context.groups.call(request.group_id, lambda shard, token, now: shard.sync(command, token, now))
    except Refused as refused:
        reply = SyncReply(error_code=refused.code)
    assert isinstance(reply, SyncReply)
    return Struct(
        error_code=reply.error_code,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )
