"""Heartbeat: the member lives; the answer tells it when to rejoin."""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import Heartbeat
from penstock.coordinator.group.decision import Now
from penstock.coordinator.group.states import GroupState


def decide_heartbeat(group: ClassicGroup, command: Heartbeat, now: Now) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    code = group.check_member(command.member_id, command.instance_id)
    if code is not ErrorCode.none:
        return code
    if command.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    group.touch(group.members[command.member_id], now)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none
