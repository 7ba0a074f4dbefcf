"""TxnOffsetCommit: whose offsets a transaction may commit (KIP-447).

The transaction already fences producers; the generation fences consumers. A consumer that was thought dead gives its
offsets to a producer of its own, which nobody has fenced: only its group knows that it is over. A rebalance that waits
for its assignment does not refuse them: the transaction was begun before it, and ends before the partitions move on
(see `PendingOffsets`).
"""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import CommitTxnOffsets
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.decision import Decision, Now, Token
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.offset_commit import commit_topics
from penstock.coordinator.group.states import GroupState
from penstock.coordinator.record_bytes import STRING_BYTES_MAX


def decide_txn_commit(
    code: ErrorCode, command: CommitTxnOffsets, config: GroupConfig, token: Token, now: Now, out: Decision
) -> None:
    """Take the offsets into the transaction, or refuse each with `code`."""
    out.producer = command.producer
    commit_topics(command.group_id, command.topics, code, config, token, now, out)


def check_txn_commit(group: ClassicGroup | ConsumerGroup | None, command: CommitTxnOffsets) -> ErrorCode:
    if not command.group_id or len(command.group_id.encode()) > STRING_BYTES_MAX:
        return ErrorCode.invalid_group_id
    if group is None:
        return ErrorCode.none if command.generation_id < 0 else ErrorCode.illegal_generation
    if isinstance(group, ConsumerGroup):
        return _check_consumer(group, command)
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if command.generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.none
    if command.generation_id < 0 and not command.member_id and command.instance_id is None:
        return ErrorCode.none  # Before KIP-447 a producer did not say which consumer it works for.
    code = group.check_member(command.member_id, command.instance_id)
    if code is not ErrorCode.none:
        return code
    return ErrorCode.none if command.generation_id == group.generation_id else ErrorCode.illegal_generation


def _check_consumer(group: ConsumerGroup, command: CommitTxnOffsets) -> ErrorCode:
    """As for a commit without a transaction, in the codes that producers know."""
    if command.generation_id < 0 and not group.members:
        return ErrorCode.none
    member = group.members.get(command.member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    if command.instance_id is not None and group.static_ids.get(command.instance_id) != command.member_id:
        return ErrorCode.fenced_instance_id
    return ErrorCode.none if command.generation_id == member.epoch else ErrorCode.illegal_generation
