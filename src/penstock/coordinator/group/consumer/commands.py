"""ConsumerGroupHeartbeat in the shape that the coordinator takes, and what can be said of it alone."""

from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.consumer.assignment import Assignment
from penstock.coordinator.group.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.record_bytes import STRING_BYTES_MAX

MEMBER_ID_FROM_CLIENT = 1  # The version from which on clients make their ids themselves (KIP-1082).
# One member's names are one record, and max.message.bytes is 1 MiB.
TOPIC_NAMES_BYTES_MAX = 1 << 19


class ConsumerHeartbeat(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1  # -1, as None below: as it was.
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None  # Empty: none any more.
    server_assignor: str | None = None
    owned: Assignment | None = None
    version: int = 1

    @property
    def is_full(self) -> bool:
        """Whether the client says everything, as it does when it joins or may have missed an answer."""
        is_subscribing = self.topic_names is not None or self.topic_regex is not None
        is_complete = self.rebalance_timeout_ms >= 0 and is_subscribing and self.owned is not None
        return self.member_epoch == JOIN_EPOCH or is_complete

    @property
    def says_nothing_new(self) -> bool:
        return (
            self.owned is None
            and self.topic_names is None
            and self.topic_regex is None
            and self.server_assignor is None
            and self.rack_id is None
            and self.rebalance_timeout_ms < 0
        )

    @property
    def is_leaving(self) -> bool:
        return self.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)


def check_heartbeat(command: ConsumerHeartbeat, config: GroupConfig) -> None:
    """Refused when the request is not sound by itself."""
    if not command.group_id:
        raise _invalid("GroupId is empty")
    if not command.member_id and (command.version >= MEMBER_ID_FROM_CLIENT or command.member_epoch != JOIN_EPOCH):
        raise _invalid("MemberId is empty")
    if "" in (command.instance_id, command.rack_id):
        raise _invalid("InstanceId or RackId is empty")
    if command.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid(f"MemberEpoch {command.member_epoch} is invalid")
    if command.member_epoch == LEAVE_STATIC_EPOCH and command.instance_id is None:
        raise _invalid("InstanceId is missing")
    if command.member_epoch == JOIN_EPOCH:
        _check_join(command)
    texts = (command.group_id, command.member_id, command.instance_id, command.rack_id, command.client_id)
    if any(_is_too_long(text) for text in texts):
        raise _invalid(f"A text is longer than {STRING_BYTES_MAX} bytes")
    if sum(len(name.encode()) for name in command.topic_names or ()) > TOPIC_NAMES_BYTES_MAX:
        raise _invalid(f"SubscribedTopicNames has more than {TOPIC_NAMES_BYTES_MAX} bytes")
    if command.server_assignor is not None and command.server_assignor not in config.consumer_assignors:
        there = ", ".join(config.consumer_assignors)
        message = f"Assignor {command.server_assignor[:100]!a} is not supported, there are: {there}"
        raise Refused(ErrorCode.unsupported_assignor, message)


def _check_join(command: ConsumerHeartbeat) -> None:
    if command.rebalance_timeout_ms < 0:
        raise _invalid("RebalanceTimeoutMs is missing in the first request")
    if command.owned is None or command.owned:
        raise _invalid("TopicPartitions is not empty in the first request")
    if command.topic_names is None and command.topic_regex is None:
        raise _invalid("SubscribedTopicNames and SubscribedTopicRegex are missing in the first request")


def _is_too_long(text: str | None) -> bool:
    return text is not None and len(text) > STRING_BYTES_MAX // 4 and len(text.encode()) > STRING_BYTES_MAX


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.invalid_request, message)
