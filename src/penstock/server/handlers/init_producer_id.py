"""InitProducerId: an id under which a producer's retries are recognised; of a transactional id, the right to use it.

v3 lets a producer say who it is (KIP-360). Without a transactional id it then gets a new id, which serves as well. v4
adds PRODUCER_FENCED, v6 two-phase commit (KIP-939): an open transaction can be kept, for somebody else to end it.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.cluster.store.base import Conflict, StoreUnavailable
from penstock.coordinator.txn.commands import InitProducerId
from penstock.coordinator.txn.metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer
from penstock.coordinator.txn.replies import NOBODY, ProducerReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.txn_errors import fenced_as
from penstock.wire.codec import Struct

FENCED_VERSION = 4


@handler(ApiKey.INIT_PRODUCER_ID, versions=range(7))
async def init_producer_id(context: Context, header: RequestHeader, request: Struct) -> Struct:
    try:
        if request.transactional_id is None:
            reply = ProducerReply(producer=Producer(await _new_id(context), 0))
        else:
            reply = await context.txns.init_producer_id(_command(request))
    except Refused as refused:
        reply = ProducerReply(error_code=refused.code)
    return Struct(
        error_code=fenced_as(reply.error_code, header.version, FENCED_VERSION),
        producer_id=reply.producer.producer_id,
        producer_epoch=reply.producer.epoch,
        ongoing_txn_producer_id=reply.ongoing.producer_id,
        ongoing_txn_producer_epoch=reply.ongoing.epoch,
    )


async def _new_id(context: Context) -> int:
    try:
        return await context.producer_ids.allocate()
    except (StoreUnavailable, Conflict) as error:
        raise Refused(ErrorCode.coordinator_not_available, str(error)) from error


def _command(request: Struct) -> InitProducerId:
    expected = Producer(request.producer_id, request.producer_epoch)
    if expected != NOBODY and (expected.producer_id == NO_PRODUCER_ID or expected.epoch == NO_PRODUCER_EPOCH):
        raise Refused(ErrorCode.invalid_request, "a producer has an id and an epoch, or neither")
    return InitProducerId(
        transactional_id=request.transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        expected=None if expected == NOBODY else expected,
        enable_2pc=request.enable2_pc,
        keep_prepared=request.keep_prepared_txn,
    )
