"""The shape of every answer of a coordinator: what to append, and which replies leave when.

The shell drives it in one step, without an await: decide, append `records` to the partition (in order; they may be cut
into several batches), `apply` each of them, send `replies_now`. What is in `replies_on_commit` leaves when everything
appended to the partition so far is below its high watermark, also when this decision has no records: the reply may tell
of records that an earlier decision appended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.base.errors import ErrorCode

R = TypeVar("R")  # What the coordinator stores.

# Who waits for a reply: whatever the shell gave with the command, never None. It comes back once, in one Reply.
Token: TypeAlias = Any


class Now(NamedTuple):
    """One instant on two clocks."""

    timer_ms: int  # Monotonic: sessions and rebalances, which a jump of the wall clock must not end.
    wall_ms: int  # Since 1970: what records say, and what committed offsets expire by.


class TransactionalProducer(NamedTuple):
    """Whose open transaction records are a part of."""

    producer_id: int
    producer_epoch: int
    guard: Any = None  # For the partition: what shows that the transaction was known to be open. Nothing in here looks.


class Response(Protocol):
    def failed(self, code: ErrorCode) -> "Response":
        """The same answer as a refusal: nothing was done."""


class Reply(NamedTuple):
    token: Token
    response: Response


@dataclass(slots=True)
class Decision(Generic[R]):
    records: list[R] = field(default_factory=list)
    replies_now: list[Reply] = field(default_factory=list)
    replies_on_commit: list[Reply] = field(default_factory=list)
    producer: TransactionalProducer | None = None  # The records are part of its transaction.

    def failed(self, append_code: ErrorCode) -> list[Reply]:
        """What those hear who wait for the commit, when the append failed, or can no longer be committed."""
        code = APPEND_ERRORS.get(append_code, append_code)
        return [Reply(token, response.failed(code)) for token, response in self.replies_on_commit]


def _codes(replies: dict[ErrorCode, Sequence[ErrorCode]]) -> dict[ErrorCode, ErrorCode]:
    return {cause: reply for reply, causes in replies.items() for cause in causes}


# What the client of a coordinator can make sense of, for what can go wrong with the partition behind it. The first two
# make it look for the coordinator again.
APPEND_ERRORS = _codes(
    {
        ErrorCode.coordinator_not_available: (
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.not_enough_replicas,
            ErrorCode.not_enough_replicas_after_append,
            ErrorCode.request_timed_out,
        ),
        ErrorCode.not_coordinator: (ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error),
    }
)
