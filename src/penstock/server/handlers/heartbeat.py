"""Heartbeat: a member is alive, and learns whether the group is being rebalanced. v3 adds static members."""

from penstock.base.errors import Refused
from penstock.coordinator.group.commands import Heartbeat
from penstock.coordinator.group.replies import HeartbeatReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.HEARTBEAT, versions=range(5))
async def heartbeat(context: Context, header: RequestHeader, request: Struct) -> Struct:
    command = Heartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id,
        instance_id=request.group_instance_id,
    )
    try:
        reply = await context.groups.call(
            request.group_id, lambda shard, token, now: shard.heartbeat(command, token, now)
        )
    except Refused as refused:
        reply = HeartbeatReply(error_code=refused.code)
    assert isinstance(reply, HeartbeatReply)
    return Struct(error_code=reply.error_code)
