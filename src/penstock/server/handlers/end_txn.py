"""EndTxn: commit or abort a transaction; answered when that is decided for good, before all partitions know.

v2 adds PRODUCER_FENCED, v4 TRANSACTION_ABORTABLE, v5 gives the producer a new epoch (KIP-890). The same request again
is answered the same; while markers are written, CONCURRENT_TRANSACTIONS, which makes clients ask again.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.txn.commands import EndTxn
from penstock.coordinator.txn.metadata import VERSION_WITH_BUMP, Producer
from penstock.coordinator.txn.replies import ProducerReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.txn_errors import fenced_as
from penstock.wire.codec import Struct

FENCED_VERSION = 2
BUMP_VERSION = 5


@handler(ApiKey.END_TXN, versions=range(6))
async def end_txn(context: Context, header: RequestHeader, request: Struct) -> Struct:
    command = EndTxn(
        transactional_id=request.transactional_id,
        producer=Producer(request.producer_id, request.producer_epoch),
        is_commit=request.committed,
        client_version=VERSION_WITH_BUMP if header.version >= BUMP_VERSION else 0,
    )
    try:
        if not command.transactional_id:
            raise Refused(ErrorCode.invalid_request, "the transactional id is empty")
        reply = await context.txns.end(command)
    except Refused as refused:
        reply = ProducerReply(error_code=refused.code)
    return Struct(
        error_code=fenced_as(reply.error_code, header.version, FENCED_VERSION),
        producer_id=reply.producer.producer_id,
        producer_epoch=reply.producer.epoch,
    )
