"""AlterReplicaLogDirs: whether replicas are in the directory that they are to move to: a broker has only one.

LOG_DIR_NOT_FOUND for any other directory, REPLICA_NOT_AVAILABLE for what is not on this broker.
"""

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=range(1, 3))
def alter_replica_log_dirs(context: Context, header: RequestHeader, request: Struct) -> Struct:
    directory = context.partitions.log_dir_description()
    here = {topic_partition for topic_partition, _ in directory.partitions}
    topics: dict[str, list[Struct]] = {}
    for item in request.dirs:
        for topic in item.topics:
            for number in topic.partitions:
                if item.path != directory.path:
                    code = ErrorCode.log_dir_not_found
                elif directory.error is not ErrorCode.none:
                    code = directory.error
                else:
                    is_here = TopicPartition(topic.name, number) in here
                    code = ErrorCode.none if is_here else ErrorCode.replica_not_available
                topics.setdefault(topic.name, []).append(Struct(partition_index=number, error_code=code))
    return Struct(results=[Struct(topic_name=name, partitions=partitions) for name, partitions in topics.items()])
