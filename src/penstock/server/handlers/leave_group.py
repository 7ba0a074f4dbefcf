"""LeaveGroup: members go without waiting for their session to end. v3 takes several, also static ones by name."""

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.commands import LeaveGroup, LeavingMember
from penstock.coordinator.group.replies import LeaveReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

BATCH_VERSION = 3


@handler(ApiKey.LEAVE_GROUP, versions=range(6))
async def leave_group(context: Context, header: RequestHeader, request: Struct) -> Struct:
    if header.version >= BATCH_VERSION:
        members = tuple(LeavingMember(item.member_id, item.group_instance_id) for item in request.members)
    else:
        members = (LeavingMember(request.member_id),)
    command = LeaveGroup(group_id=request.group_id, members=members)
    try:
        reply = await context.groups.call(request.group_id, lambda shard, token, now: shard.leave(command, token, now))
    except Refused as refused:
        reply = LeaveReply(error_code=refused.code)
    assert isinstance(reply, LeaveReply)
    code = reply.error_code
    if header.version < BATCH_VERSION and code is ErrorCode.none and reply.members:
        code = reply.members[0].error_code
    return Struct(
        error_code=code,
        members=[
            Struct(member_id=member.member_id, group_instance_id=member.instance_id, error_code=member.error_code)
            for member in reply.members
        ],
    )
