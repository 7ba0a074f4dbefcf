"""ConsumerGroupHeartbeat: join, live in and leave a group of the new protocol (KIP-848).

What did not change since the last request is left out, in both directions. v1 adds subscriptions by regular expression,
and member ids that clients make themselves (KIP-1082).
"""

from penstock.base.errors import Refused
from penstock.coordinator.group.consumer.assignment import Assignment
from penstock.coordinator.group.consumer.commands import ConsumerHeartbeat
from penstock.coordinator.group.consumer.replies import ConsumerHeartbeatReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=range(2))
async def consumer_group_heartbeat(context: Context, header: RequestHeader, request: Struct) -> Struct:
    names = request.subscribed_topic_names
    command = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=header.client_id or "",
        client_host=f"/{header.client_host}",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=None if names is None else tuple(dict.fromkeys(names)),
        topic_regex=request.subscribed_topic_regex if header.version >= 1 else None,
        server_assignor=request.server_assignor,
        owned=_assignment(request.topic_partitions),
        version=header.version,
    )
    try:
        reply = await context.groups.call(
            request.group_id, lambda shard, token, now: shard.consumer_heartbeat(command, token, now)
        )
    except Refused as refused:
        reply = ConsumerHeartbeatReply(error_code=refused.code, error_message=refused.message)
    assert isinstance(reply, ConsumerHeartbeatReply)
    return Struct(
        error_code=reply.error_code,
        error_message=reply.error_message,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=None
        if reply.assignment is None
        else Struct(
            topic_partitions=[
                Struct(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in reply.assignment.items()
            ]
        ),
    )


def _assignment(topics: list[Struct] | None) -> Assignment | None:
    if topics is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}
