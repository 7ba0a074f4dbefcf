"""DescribeCluster: the cluster's id, its controller and its brokers (KIP-700).

v1 asks for brokers or controllers (KIP-919): there are no controllers of their own here. v2 adds fenced brokers: a
broker that is not there is not listed, so no listed one is fenced.
"""

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.topic_view import CLUSTER_OPERATIONS, NOT_ASKED
from penstock.wire.codec import Struct

BROKERS = 1
CONTROLLERS = 2


@handler(ApiKey.DESCRIBE_CLUSTER, versions=range(3))
def describe_cluster(context: Context, header: RequestHeader, request: Struct) -> Struct:
    image = context.metadata.image
    code, message = _refusal(request.endpoint_type)
    brokers = [] if message else sorted(image.brokers.items())
    return Struct(
        error_code=code,
        error_message=message,
        endpoint_type=request.endpoint_type,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            Struct(broker_id=node_id, host=broker.host, port=broker.port, rack=broker.rack, is_fenced=False)
            for node_id, broker in brokers
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _refusal(endpoint_type: int) -> tuple[ErrorCode, str | None]:
    if endpoint_type == BROKERS:
        return ErrorCode.none, None
    if endpoint_type == CONTROLLERS:
        return ErrorCode.mismatched_endpoint_type, "This is a broker, there are no controllers of their own"
    return ErrorCode.unsupported_endpoint_type, f"There is no endpoint type {endpoint_type}"
