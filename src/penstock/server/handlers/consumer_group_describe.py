"""ConsumerGroupDescribe: groups of the new protocol, with epochs, assignments and targets (KIP-848).

A classic group is GROUP_ID_NOT_FOUND: tools then ask with DescribeGroups. v1 tells members of the two protocols apart.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.cluster.image import ClusterImage
from penstock.coordinator.group.consumer.assignment import Assignment
from penstock.coordinator.group.consumer.views import ConsumerMemberView
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


@handler(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=range(2))
def consumer_group_describe(context: Context, header: RequestHeader, request: Struct) -> Struct:
    return Struct(groups=[_describe(context, group_id) for group_id in dict.fromkeys(request.group_ids)])


def _describe(context: Context, group_id: str) -> Struct:
    code, message = ErrorCode.group_id_not_found, f"Group {group_id[:249]} is not a consumer group."
    try:
        view = context.groups.look(group_id, lambda shard: shard.describe_consumer(group_id))
    except Refused as refused:
        view, code, message = None, refused.code, refused.message
    if view is None:
        return Struct(
            error_code=code,
            error_message=message,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
        )
    return Struct(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=view.state,
        group_epoch=view.epoch,
        assignment_epoch=view.target_epoch,
        assignor_name=view.assignor,
        members=[_member(context.metadata.image, member) for member in view.members],
    )


def _member(image: ClusterImage, member: ConsumerMemberView) -> Struct:
    metadata = member.metadata
    return Struct(
        member_id=metadata.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.topic_names,
        subscribed_topic_regex=metadata.topic_regex,
        assignment=_assignment(image, member.assigned),
        target_assignment=_assignment(image, member.target),
        member_type=CONSUMER_MEMBER if metadata.classic is None else CLASSIC_MEMBER,
    )


def _assignment(image: ClusterImage, assignment: Assignment) -> Struct:
    """With the names of topics; one that was deleted has none, and is left out."""
    return Struct(
        topic_partitions=[
            Struct(topic_id=topic_id, topic_name=image.topic_names[topic_id], partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
            if topic_id in image.topic_names
        ]
    )
