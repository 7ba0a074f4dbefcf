"""ElectLeaders: give partitions to their preferred leader, or to any replica that is there (KIP-460).

Null partitions mean all; then only those are answered that were not led as wanted. v0 knows preferred leaders only, and
has no place for an error of the whole. `timeout_ms` is not looked at: the reply leaves when the leaders are elected.
"""

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.cluster.election_plan import ElectionResult, ElectionType
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

TYPE_VERSION = 1


@handler(ApiKey.ELECT_LEADERS, versions=range(3), is_at_controller=True)
async def elect_leaders(context: Context, header: RequestHeader, request: Struct) -> Struct:
    election_type = request.election_type if header.version >= TYPE_VERSION else ElectionType.PREFERRED
    asked = None
    if request.topic_partitions is not None:
        asked = [TopicPartition(item.topic, number) for item in request.topic_partitions for number in item.partitions]
    if context.metadata.image.controller_id != context.config.node_id:
        return _refused(ErrorCode.not_controller, "This broker is not the controller", asked)
    if election_type not in list(ElectionType):
        return _refused(ErrorCode.invalid_request, f"There is no election type {election_type}", asked)
    results = await context.controller.elect_leaders(ElectionType(election_type), asked)
    return Struct(error_code=ErrorCode.none, replica_election_results=_by_topic(results))


def _refused(code: ErrorCode, message: str, asked: list[TopicPartition] | None) -> Struct:
    results = [ElectionResult(partition, code, message) for partition in asked or ()]
    return Struct(error_code=code, replica_election_results=_by_topic(results))


def _by_topic(results: list[ElectionResult]) -> list[Struct]:
    topics: dict[str, list[Struct]] = {}
    for result in results:
        topics.setdefault(result.partition.topic, []).append(
            Struct(partition_id=result.partition.partition, error_code=result.code, error_message=result.message)
        )
    return [Struct(topic=topic, partition_result=partitions) for topic, partitions in topics.items()]
