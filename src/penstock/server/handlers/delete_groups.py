"""DeleteGroups: forget empty groups with all their offsets."""

from penstock.base.errors import Refused
from penstock.coordinator.group.commands import DeleteGroups
from penstock.coordinator.group.replies import DeletedGroup, DeleteGroupsReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.DELETE_GROUPS, versions=range(3))
async def delete_groups(context: Context, header: RequestHeader, request: Struct) -> Struct:
    results = [await _delete(context, group_id) for group_id in dict.fromkeys(request.groups_names)]
    return Struct(results=[Struct(group_id=result.group_id, error_code=result.error_code) for result in results])


async def _delete(context: Context, group_id: str) -> DeletedGroup:
    command = DeleteGroups(group_ids=(group_id,))
    try:
        reply = await context.groups.call(group_id, lambda shard, token, now: shard.delete_groups(command, token))
    except Refused as refused:
        return DeletedGroup(group_id, refused.code)
    assert isinstance(reply, DeleteGroupsReply)
    return reply.groups[0]
