"""How a group gets from one generation to the next.

A rebalance collects joins until every member has rejoined and nobody is expected, or the members' longest rebalance
timeout is over; dynamic members that did not rejoin are then removed, static ones keep their seat until their session
ends. The first rebalance of an empty group waits a little instead, so that members who start together meet at once.

Each member costs constant work per join, and all of them once when the rebalance completes.
"""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.deadlines import Key, Kind
from penstock.coordinator.group.decision import Decision, Now
from penstock.coordinator.group.replies import SyncReply
from penstock.coordinator.group.states import GroupState

ABSENT_RETRY_MS = 1_000  # A rebalance timeout may be 0, and nothing changes before someone joins.


def rebalance_or_complete(group: ClassicGroup, now: Now, out: Decision) -> None:
    """After a member was added, changed or removed."""
    if group.state is GroupState.PREPARING_REBALANCE:
        maybe_complete_join(group, now, out)
    else:
        prepare_rebalance(group, now, out)


def prepare_rebalance(group: ClassicGroup, now: Now, out: Decision) -> None:
    if group.state is GroupState.COMPLETING_REBALANCE:
        _send_back(group, now, out)
    group.unsynced_ids.clear()
    group.deadlines.cancel(Key(Kind.SYNC, group.group_id))
    is_initial = group.state is GroupState.EMPTY
    group.become(GroupState.PREPARING_REBALANCE, now.wall_ms)
    if is_initial:
        _begin_initial(group, now, out)
    elif group.has_all_joined:
        complete_join(group, now, out)
    else:
        _await_members(group, now)


def _send_back(group: ClassicGroup, now: Now, out: Decision) -> None:
    """Whoever waits for an assignment that will not come joins again."""
    for member in group.members.values():
        if member.sync_token is not None:
            group.answer_sync(member, SyncReply(error_code=ErrorCode.rebalance_in_progress), out)
            group.touch(member, now)


def _begin_initial(group: ClassicGroup, now: Now, out: Decision) -> None:
    delay_ms = group.config.initial_rebalance_delay_ms
    if delay_ms == 0:
        complete_join(group, now, out)
        return
    group.initial_until_ms = now.timer_ms + max(group.rebalance_timeout_ms, delay_ms)
    group.has_new_member = False
    group.deadlines.set(Key(Kind.JOIN, group.group_id), now.timer_ms + delay_ms)


def _await_members(group: ClassicGroup, now: Now) -> None:
    group.deadlines.set(Key(Kind.JOIN, group.group_id), now.timer_ms + group.rebalance_timeout_ms)


def maybe_complete_join(group: ClassicGroup, now: Now, out: Decision) -> bool:
    """Complete the rebalance if there is nobody left to wait for; gives whether it did."""
    if group.state is not GroupState.PREPARING_REBALANCE or not group.has_all_joined:
        return False
    if group.initial_until_ms is not None and group.members:
        return False  # All that are known have joined; this one waits for those that are not.
    complete_join(group, now, out)
    return True


def complete_join(group: ClassicGroup, now: Now, out: Decision) -> None:
    """The next generation begins with those who have joined."""
    group.deadlines.cancel(Key(Kind.JOIN, group.group_id))
    group.initial_until_ms = None
    for member in list(group.members.values()):
        if member.join_token is None and not member.is_static:
            group.remove(member.member_id, ErrorCode.unknown_member_id, out)
    if not group.members:
        _become_empty(group, now, out)
    elif group.elect_joined_leader():
        _begin_generation(group, now, out)
    else:
        # Only static members, all absent: they come back, or their sessions end.
        until_ms = now.timer_ms + max(group.rebalance_timeout_ms, ABSENT_RETRY_MS)
        group.deadlines.set(Key(Kind.JOIN, group.group_id), until_ms)


def _become_empty(group: ClassicGroup, now: Now, out: Decision) -> None:
    if group.generation_id == 0:
        group.become(GroupState.EMPTY, now.wall_ms)  # Nobody was told a generation, so there is none to remember.
        return
    group.next_generation(now)
    out.records.append(group.metadata({}))


def _begin_generation(group: ClassicGroup, now: Now, out: Decision) -> None:
    group.next_generation(now)
    for member in group.members.values():
        # An absent static member gets no new session (in Kafka it does): rebalances would keep the dead in their seats.
        if member.join_token is not None:
            group.answer_join(member, group.joined(member), out)
            member.is_new = False
            group.touch(member, now)
    group.deadlines.set(Key(Kind.SYNC, group.group_id), now.timer_ms + group.rebalance_timeout_ms)


# Time that ran out ----------------------------------------------------------------------------------------------------


def on_join_deadline(group: ClassicGroup, now: Now, out: Decision) -> None:
    if group.initial_until_ms is not None and group.has_new_member and now.timer_ms < group.initial_until_ms:
        group.has_new_member = False
        until_ms = min(now.timer_ms + group.config.initial_rebalance_delay_ms, group.initial_until_ms)
        group.deadlines.set(Key(Kind.JOIN, group.group_id), until_ms)
    else:
        complete_join(group, now, out)


def on_sync_deadline(group: ClassicGroup, now: Now, out: Decision) -> None:
    """Members that did not ask for their assignment are gone; one that holds partitions unread would stop them."""
    assert group.unsynced_ids, f"{group.group_id!r}: the last SyncGroup cancels this"
    for member_id in list(group.unsynced_ids):
        group.remove(member_id, ErrorCode.unknown_member_id, out)
    prepare_rebalance(group, now, out)


def on_session_deadline(group: ClassicGroup, member_id: str, now: Now, out: Decision) -> None:
    if member_id in group.pending_ids:
        group.remove_pending(member_id)
        maybe_complete_join(group, now, out)
    elif not group.members[member_id].is_excused:
        # A parked request of a new member is answered UNKNOWN_MEMBER_ID: a client that still waits joins anew.
        group.remove(member_id, ErrorCode.unknown_member_id, out)
        rebalance_or_complete(group, now, out)
