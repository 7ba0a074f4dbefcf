"""AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546).

User, client id or both: producer_byte_rate, consumer_byte_rate, request_percentage. Address: connection_creation_rate.
A null name is the default, for all without a quota of their own. controller_mutation_rate is refused: a quota that is
not enforced must not look as if it were. v1 is flexible and nothing else.
"""

from penstock.cluster.quota_plan import AlterQuota, QuotaOperation, QuotaResult
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.ALTER_CLIENT_QUOTAS, versions=range(2), is_at_controller=True)
async def alter_client_quotas(context: Context, header: RequestHeader, request: Struct) -> Struct:
    alterations = [
        AlterQuota(
            tuple((part.entity_type, part.entity_name) for part in entry.entity),
            [QuotaOperation(item.key, None if item.remove else item.value) for item in entry.ops],
        )
        for entry in request.entries
    ]
    results = await context.controller.alter_quotas(alterations, validate_only=request.validate_only)
    return Struct(entries=[_entry(result) for result in results])


def _entry(result: QuotaResult) -> Struct:
    return Struct(
        error_code=result.code,
        error_message=result.message,
        entity=[Struct(entity_type=kind, entity_name=name) for kind, name in result.components],
    )
