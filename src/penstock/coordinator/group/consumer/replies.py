"""What ConsumerGroupHeartbeat answers."""

from typing import NamedTuple

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.consumer.assignment import Assignment
from penstock.coordinator.group.replies import group_code


class ConsumerHeartbeatReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None  # None: as it was.

    def failed(self, code: ErrorCode) -> "ConsumerHeartbeatReply":
        return ConsumerHeartbeatReply(error_code=group_code(code))
