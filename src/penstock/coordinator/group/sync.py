"""SyncGroup: the leader brings the assignment, everyone gets their part of it.

The assignment is stored before anyone hears of it: a coordinator that takes over knows who owns what. Followers that
ask early are parked; those that ask when the group is stable wait for the high watermark like everyone else.

v5 (KIP-559): the request names the protocol that it assumes, and is refused if that is not the group's.
"""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import SyncGroup
from penstock.coordinator.group.deadlines import Key, Kind
from penstock.coordinator.group.decision import Decision, Now, Reply, Token
from penstock.coordinator.group.replies import SyncReply
from penstock.coordinator.group.states import GroupState


def decide_sync(group: ClassicGroup, command: SyncGroup, token: Token, now: Now, out: Decision) -> None:
    code = _check(group, command)
    if code is not ErrorCode.none:
        out.replies_now.append(Reply(token, SyncReply(error_code=code)))
        return
    member = group.members[command.member_id]
    if not group.budget.has_room(_more_bytes(group, command)):
        # Not a member any longer when the time for this generation is up; then another one may try to lead.
        out.replies_now.append(Reply(token, SyncReply(error_code=ErrorCode.group_max_size_reached)))
        return
    group.unsynced_ids.discard(command.member_id)
    if not group.unsynced_ids:
        group.deadlines.cancel(Key(Kind.SYNC, group.group_id))
    if group.state is GroupState.STABLE:
        out.replies_on_commit.append(Reply(token, _synced(group, member.assignment)))
        group.touch(member, now)
        return
    group.park_sync(member, token, out)
    if command.member_id == group.leader_id:
        _store_assignment(group, command, now, out)


def _check(group: ClassicGroup, command: SyncGroup) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    code = group.check_member(command.member_id, command.instance_id)
    if code is not ErrorCode.none:
        return code
    if command.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    if _differ(command.protocol_type, group.protocol_type) or _differ(command.protocol_name, group.protocol_name):
        return ErrorCode.inconsistent_group_protocol
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def _differ(asked: str | None, there: str | None) -> bool:
    return asked is not None and there is not None and asked != there


def _more_bytes(group: ClassicGroup, command: SyncGroup) -> int:
    """What this assignment takes in memory, on top of the one before; nothing unless it is the one that counts."""
    if group.state is not GroupState.COMPLETING_REBALANCE or command.member_id != group.leader_id:
        return 0
    members = group.members.values()
    return sum(len(command.assignments.get(member.member_id, b"")) - len(member.assignment) for member in members)


def _store_assignment(group: ClassicGroup, command: SyncGroup, now: Now, out: Decision) -> None:
    """The record of this generation, and the replies that leave when it is committed. `on_stored` does the rest."""
    out.records.append(group.metadata(command.assignments))
    for member in group.members.values():
        if member.sync_token is not None:
            reply = _synced(group, command.assignments.get(member.member_id, b""))
            out.replies_on_commit.append(Reply(member.sync_token, reply))
            member.sync_token = None
            group.touch(member, now)


def _synced(group: ClassicGroup, assignment: bytes) -> SyncReply:
    return SyncReply(protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment)
