"""LeaveGroup: members go without waiting for their sessions to end.

v3 (KIP-345) takes several members, each by member id, by both ids, or by instance id alone: so an operator removes a
static member that will not come back. Before v3 the one member's error is the request's.
"""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import LeaveGroup, LeavingMember
from penstock.coordinator.group.decision import Decision, Now, Reply, Token
from penstock.coordinator.group.rebalance import maybe_complete_join, rebalance_or_complete
from penstock.coordinator.group.replies import LeaveReply, LeftMember
from penstock.coordinator.group.states import GroupState


def decide_leave(group: ClassicGroup, command: LeaveGroup, token: Token, now: Now, out: Decision) -> None:
    if group.state is GroupState.DEAD:
        out.replies_now.append(Reply(token, LeaveReply(error_code=ErrorCode.coordinator_not_available)))
        return
    members_before = len(group.members)
    left = tuple(_leave(group, leaving, out) for leaving in command.members)
    if len(group.members) < members_before:
        rebalance_or_complete(group, now, out)
    else:
        maybe_complete_join(group, now, out)  # Only a pending id may have gone.
    out.replies_on_commit.append(Reply(token, LeaveReply(members=left)))


def _leave(group: ClassicGroup, leaving: LeavingMember, out: Decision) -> LeftMember:
    member_id, instance_id = leaving
    if not member_id and instance_id is not None:
        member_id = group.static_ids.get(instance_id, "")
    if member_id in group.pending_ids:
        group.remove_pending(member_id)
        return LeftMember(*leaving, ErrorCode.none)
    code = group.check_member(member_id, instance_id)
    if code is ErrorCode.none:
        group.remove(member_id, ErrorCode.unknown_member_id, out)
    return LeftMember(*leaving, code)
