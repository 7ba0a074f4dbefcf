"""JoinGroup: who may take part in the next generation.

v4 (KIP-394): a new dynamic member first gets an id and joins with it, so that a lost answer leaves no ghost behind.
v5 (KIP-345): a static member, known by its instance id, takes its seat again under a new member id.
v9 (KIP-814): if that one is the leader of a stable group, it is told the members and not to assign anything.
"""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import JoinGroup
from penstock.coordinator.group.decision import Decision, Now, Reply, Token
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.member import Member, member_of
from penstock.coordinator.group.protocol_plan import are_sound, are_within_bounds
from penstock.coordinator.group.rebalance import prepare_rebalance, rebalance_or_complete
from penstock.coordinator.group.replies import JoinReply
from penstock.coordinator.group.states import GroupState
from penstock.coordinator.group.subscription import topics_of
from penstock.coordinator.record_bytes import STRING_BYTES_MAX

MEMBER_ID_REQUIRED_FROM = 4
SKIP_ASSIGNMENT_FROM = 9


def check_join(command: JoinGroup, config: GroupConfig) -> ErrorCode:
    """What can be said of the request alone."""
    if not command.group_id or _is_too_long(command.group_id):
        return ErrorCode.invalid_group_id
    if not config.min_session_timeout_ms <= command.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.invalid_session_timeout
    texts = (command.instance_id or "", command.client_id, command.client_host, command.protocol_type)
    if any(_is_too_long(text) for text in texts) or not are_within_bounds(command.protocols, config):
        return ErrorCode.invalid_request
    if not command.protocol_type or not are_sound(command.protocols):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


def _is_too_long(text: str) -> bool:
    return len(text.encode()) > STRING_BYTES_MAX


def decide_join(group: ClassicGroup, command: JoinGroup, token: Token, now: Now, out: Decision) -> str | None:
    """Decide on a sound request; gives the member id that was handed out and is now pending, if any."""
    code = _check_group(group, command)
    if code is ErrorCode.group_max_size_reached and command.member_id in group.members:
        group.remove(command.member_id, code, out)  # The group shrank its limit: the last to rejoin has no seat.
        rebalance_or_complete(group, now, out)
    if code is not ErrorCode.none:
        member_id = "" if code is ErrorCode.group_max_size_reached else command.member_id
        out.replies_now.append(Reply(token, JoinReply(error_code=code, member_id=member_id)))
        return None
    if command.member_id:
        _join_known(group, command, token, now, out)
        return None
    return _join_unknown(group, command, token, now, out)


def _check_group(group: ClassicGroup, command: JoinGroup) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if not _has_room(group, command):
        return ErrorCode.group_max_size_reached
    if group.members and command.protocol_type != group.protocol_type:
        return ErrorCode.inconsistent_group_protocol
    if not group.protocols.has_common(command.protocols):
        return ErrorCode.inconsistent_group_protocol
    if command.member_id and not (command.member_id in group.pending_ids and command.instance_id is None):
        return group.check_member(command.member_id, command.instance_id)
    return ErrorCode.none


def _has_room(group: ClassicGroup, command: JoinGroup) -> bool:
    member_id: str | None = command.member_id
    if not member_id and command.instance_id is not None:
        member_id = group.static_ids.get(command.instance_id)  # Its seat is taken again, not added.
    member = group.members.get(member_id or "")
    if not group.budget.can_join(command, member):
        return False
    if group.state is GroupState.PREPARING_REBALANCE:
        # Those who have rejoined count, not those there were: a smaller limit takes effect with the next rebalance.
        return (member is not None and member.join_token is not None) or group.parked_joins < group.config.max_size
    return member is not None or len(group.members) < group.config.max_size


# A new member ---------------------------------------------------------------------------------------------------------


def _join_unknown(group: ClassicGroup, command: JoinGroup, token: Token, now: Now, out: Decision) -> str | None:
    member_id = group.new_member_id(command)
    if command.instance_id is not None:
        seated = group.static_ids.get(command.instance_id)
        if seated is None:
            _add(group, member_id, command, token, now, out)
        else:
            _take_seat(group, seated, member_id, command, token, now, out)
        return None
    if command.version < MEMBER_ID_REQUIRED_FROM:
        _add(group, member_id, command, token, now, out)
        return None
    group.add_pending(member_id, now.timer_ms + command.session_timeout_ms)
    out.replies_now.append(Reply(token, JoinReply(error_code=ErrorCode.member_id_required, member_id=member_id)))
    return member_id


def _add(group: ClassicGroup, member_id: str, command: JoinGroup, token: Token, now: Now, out: Decision) -> None:
    if not group.members:
        group.protocol_type = command.protocol_type
    member = member_of(member_id, command)
    member.is_new = True
    group.add(member)
    group.park_join(member, token, out)
    group.await_new_member(member, now)
    group.has_new_member = True
    rebalance_or_complete(group, now, out)


def _take_seat(
    group: ClassicGroup, old_id: str, new_id: str, command: JoinGroup, token: Token, now: Now, out: Decision
) -> None:
    """A static member restarted, or a second process uses its instance id: the last one wins, the other is fenced."""
    old_leader = group.leader_id or ""
    member = group.replace_static(old_id, new_id, out)
    old_metadata = member.metadata(group.protocol_name)
    group.update(member, command)
    group.touch(member, now)
    if group.state is GroupState.STABLE and _is_assignment_valid(group, member, old_metadata):
        out.records.append(group.metadata({other.member_id: other.assignment for other in group.members.values()}))
        out.replies_on_commit.append(Reply(token, _seated(group, member, command.version, old_leader)))
        return
    group.park_join(member, token, out)
    if group.state is GroupState.COMPLETING_REBALANCE:
        # The leader may be assigning to the old id right now.
        prepare_rebalance(group, now, out)
    else:
        rebalance_or_complete(group, now, out)


def _is_assignment_valid(group: ClassicGroup, member: Member, old_metadata: bytes) -> bool:
    """Whether the last assignment still fits: same protocol, same topics.

    The bytes themselves differ after every restart, because consumers put the partitions they own into them.
    """
    if group.protocols.select(other.protocols for other in group.members.values()) != group.protocol_name:
        return False
    if not group.uses_consumer_protocol:
        return True
    return topics_of(old_metadata) == topics_of(member.metadata(group.protocol_name))


def _seated(group: ClassicGroup, member: Member, version: int, old_leader: str) -> JoinReply:
    reply = group.joined(member)
    if member.member_id != group.leader_id:
        return reply
    is_skipping = version >= SKIP_ASSIGNMENT_FROM
    return JoinReply(
        generation_id=reply.generation_id,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        # A client that cannot skip the assignment must not take itself for the leader: it is told the old id.
        leader=reply.leader if is_skipping else old_leader,
        member_id=reply.member_id,
        members=reply.members if is_skipping else (),
        skip_assignment=is_skipping,
    )


# A member with an id --------------------------------------------------------------------------------------------------


def _join_known(group: ClassicGroup, command: JoinGroup, token: Token, now: Now, out: Decision) -> None:
    if command.member_id in group.pending_ids:
        _add(group, command.member_id, command, token, now, out)
        return
    member = group.members[command.member_id]
    if _is_up_to_date(group, member, command):
        # It lost our answer, or only wants to know: it is in this generation already.
        out.replies_now.append(Reply(token, group.joined(member)))
        group.touch(member, now)
        return
    group.update(member, command)
    group.park_join(member, token, out)
    if member.is_new:
        group.await_new_member(member, now)
    rebalance_or_complete(group, now, out)


def _is_up_to_date(group: ClassicGroup, member: Member, command: JoinGroup) -> bool:
    if member.protocols != command.protocols:
        return False
    if group.state is GroupState.STABLE:
        # The leader joins again when something changed that only it can see, such as the partitions of a topic.
        return member.member_id != group.leader_id
    return group.state is GroupState.COMPLETING_REBALANCE
