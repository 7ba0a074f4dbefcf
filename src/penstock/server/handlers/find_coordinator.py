"""FindCoordinator: the broker that a group's requests go to, or a transactional producer's.

v1 adds the key type, v4 asks for many at once (KIP-699). Type 2 (share groups) is not served yet and refused. The topic
of a coordinator is made when the first one is looked for.
"""

from typing import Any

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_NODE
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

GROUP = 0
TRANSACTION = 1
BATCH_VERSION = 4


@handler(ApiKey.FIND_COORDINATOR, versions=range(7))
async def find_coordinator(context: Context, header: RequestHeader, request: Struct) -> Struct:
    if header.version < BATCH_VERSION:
        return Struct(**await _find(context, request.key, request.key_type))
    keys = dict.fromkeys(request.coordinator_keys)
    return Struct(coordinators=[Struct(key=key, **await _find(context, key, request.key_type)) for key in keys])


async def _find(context: Context, key: str, key_type: int) -> dict[str, Any]:
    """The fields that say where the coordinator is, or why there is none."""
    try:
        if key_type == GROUP:
            if not key:
                raise Refused(ErrorCode.invalid_group_id, "the group id is empty")
            broker = await context.groups.find(key)
        elif key_type == TRANSACTION:
            if not key:
                raise Refused(ErrorCode.invalid_request, "the transactional id is empty")
            broker = await context.txns.find(key)
        else:
            raise Refused(ErrorCode.invalid_request, f"coordinators of type {key_type} are not served")
    except Refused as refused:
        code, message = refused.code, refused.message or None
        return {"node_id": NO_NODE, "host": "", "port": -1, "error_code": code, "error_message": message}
    return {
        "node_id": broker.node_id,
        "host": broker.host,
        "port": broker.port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
