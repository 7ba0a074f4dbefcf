"""What the runtime needs of a coordinator's pure part: a shard for each partition of its topic, and a record format."""

from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock.base.errors import ErrorCode
from penstock.coordinator.decision import Decision, Now

R = TypeVar("R")


class RecordCodec(Protocol[R]):
    """How records are stored; a module with these two functions is one."""

    def encode(self, record: R, /) -> tuple[bytes, bytes | None]:
        """The record's key and value; a value of None is a tombstone."""

    def decode(self, key: bytes | None, value: bytes | None, /) -> R | None:
        """The record, or None when its key is of a type that is not ours. CorruptRecord when it cannot be read."""


class Shard(Protocol):
    """`apply` holds every change that must survive and never refuses; all else decides and changes nothing of that."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `on_tick` is due, on the timer's clock; None: nothing waits. To be asked again after every call."""

    def apply(self, record: Any, /) -> None:
        """The record is in the log. In the order of the log, exactly once each."""

    def on_loaded(self, now: Now, /) -> Decision[Any]:
        """All records were applied."""

    def on_tick(self, now: Now, /) -> Decision[Any]:
        """Everything that is due."""

    def on_append_failed(self, decision: Any, code: ErrorCode, now: Now, /) -> Decision[Any]:
        """Nothing of `decision`, one of the shard's own, was appended, nor applied. What comes back takes its place."""

    def unload(self, code: ErrorCode, /) -> Decision[Any]:
        """Another broker has this partition now: everyone who waits is told, and the object is not used again."""


@runtime_checkable
class TransactionalShard(Protocol):
    """A shard whose records may be part of a transaction. Both are called in the order of the log, as `apply` is."""

    def apply_transactional(self, record: Any, producer_id: int, /) -> None:
        """The record is in the log, and counts when, and if, the producer's transaction is committed."""

    def apply_end(self, producer_id: int, /, *, is_commit: bool) -> None:
        """The log has the end of the producer's transaction; of one that wrote nothing here, perhaps."""
