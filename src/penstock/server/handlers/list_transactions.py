"""ListTransactions: the transactional ids that this broker coordinates (KIP-664).

v1 filters by how long ago the transaction began (KIP-994), v2 by a regular expression for the id (KIP-1152).
"""

from functools import partial

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.consumer.regex_subscription import check_regex, matching
from penstock.coordinator.txn.states import BY_TITLE
from penstock.coordinator.txn.views import TxnFilter
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.LIST_TRANSACTIONS, versions=range(3))
def list_transactions(context: Context, header: RequestHeader, request: Struct) -> Struct:
    titles = list(dict.fromkeys(request.state_filters))
    pattern = request.transactional_id_pattern
    try:
        if pattern:
            check_regex(pattern)
        wanted = TxnFilter(
            states={BY_TITLE[title] for title in titles if title in BY_TITLE} if titles else None,
            producer_ids=frozenset(request.producer_id_filters),
            duration_ms=request.duration_filter,
            matches_id=partial(_matches, pattern) if pattern else None,
        )
        found = context.txns.listed(wanted)
    except Refused as refused:
        return Struct(error_code=refused.code, unknown_state_filters=[], transaction_states=[])
    return Struct(
        error_code=ErrorCode.none,
        unknown_state_filters=[title for title in titles if title not in BY_TITLE],
        transaction_states=[
            Struct(
                transactional_id=item.transactional_id,
                producer_id=item.producer_id,
                transaction_state=item.state.title,
            )
            for item in found
        ],
    )


def _matches(pattern: str, transactional_id: str) -> bool:
    return bool(matching(pattern, (transactional_id,)))
