"""InitProducerId: an id under which a producer's retries are recognised.

v3 lets a producer ask for a new epoch of the id it has (KIP-360); a new id serves as well. Transactional ids are not
served yet and refused. v6 (two-phase commit) is not served.
"""

from penstock.base.errors import ErrorCode
from penstock.cluster.store.base import Conflict, StoreUnavailable
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

NO_PRODUCER = -1


@handler(ApiKey.INIT_PRODUCER_ID, versions=range(6))
async def init_producer_id(context: Context, header: RequestHeader, request: Struct) -> Struct:
    if request.transactional_id is not None:
        return _refused(ErrorCode.transactional_id_authorization_failed)
    try:
        producer_id = await context.producer_ids.allocate()
    except (StoreUnavailable, Conflict):
        return _refused(ErrorCode.coordinator_not_available)
    return Struct(error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> Struct:
    return Struct(error_code=code, producer_id=NO_PRODUCER, producer_epoch=-1)
