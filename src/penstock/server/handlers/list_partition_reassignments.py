"""ListPartitionReassignments: the partitions that are on their way to other brokers (KIP-455).

Null topics mean all. Partitions that are not moving, and such as there are not, are left out.
"""

from collections.abc import Iterable

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.cluster.image import ClusterImage, PartitionState
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=range(1), is_at_controller=True)
def list_partition_reassignments(context: Context, header: RequestHeader, request: Struct) -> Struct:
    image = context.metadata.image
    if image.controller_id != context.config.node_id:
        message = "This broker is not the controller"
        return Struct(error_code=ErrorCode.not_controller, error_message=message, topics=[])
    topics: dict[str, list[Struct]] = {}
    for name, state in _asked_for(image, request):
        if state.adding or state.removing:
            topics.setdefault(name, []).append(
                Struct(
                    partition_index=state.partition,
                    replicas=state.replicas,
                    adding_replicas=state.adding,
                    removing_replicas=state.removing,
                )
            )
    return Struct(
        error_code=ErrorCode.none,
        error_message=None,
        topics=[Struct(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def _asked_for(image: ClusterImage, request: Struct) -> Iterable[tuple[str, PartitionState]]:
    if request.topics is None:
        return [(name, state) for name, topic in sorted(image.topics.items()) for state in topic.partitions]
    asked = {TopicPartition(topic.name, number) for topic in request.topics for number in topic.partition_indexes}
    found = [(partition.topic, image.partition(partition)) for partition in sorted(asked)]
    return [(name, state) for name, state in found if state is not None]
