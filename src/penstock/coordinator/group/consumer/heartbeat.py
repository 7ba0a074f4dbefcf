"""ConsumerGroupHeartbeat: how members of the new protocol join, live, learn what is theirs and say what they own.

A heartbeat that has nothing to say, to a group in which nothing happened, costs a few look-ups. All else goes the long
way: the member's metadata, the group's epoch, the target assignment, the member's own next step, each with its records.

A member names its epoch. One that is behind by an answer that it never got is let through; any other is fenced, and
comes back with epoch 0 and empty hands. So does one that joins: asking twice is harmless.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.consumer.assignment import NOTHING, Assignment, is_within
from penstock.coordinator.group.consumer.commands import ConsumerHeartbeat
from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.member import JOIN_EPOCH, LEAVE_STATIC_EPOCH, ConsumerMember
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.consumer.reconciliation import reconcile
from penstock.coordinator.group.consumer.records import (
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
    ConsumerGroupTargetAssignmentMember,
)
from penstock.coordinator.group.consumer.regex_subscription import check_regex
from penstock.coordinator.group.consumer.removal import write_removal
from penstock.coordinator.group.consumer.replies import ConsumerHeartbeatReply
from penstock.coordinator.group.consumer.setting import Setting
from penstock.coordinator.group.consumer.subscription_metadata import maybe_refresh
from penstock.coordinator.group.consumer.target_assignment import bump_epoch, update_target
from penstock.coordinator.group.decision import Decision, Now

# A target costs about 2 us per member and partition. Below LARGE_FROM that is nothing. Above, the time from one to the
# next grows with the size, so that a group whose members all come at once takes a fiftieth of a core: 11,000 => 1.1 s.
LARGE_FROM = 2_000
SIZE_PER_MS = 10


def is_plain(group: ConsumerGroup, command: ConsumerHeartbeat) -> bool:
    """Whether the member says only that it lives, and there is nothing to tell it."""
    member = group.members.get(command.member_id)
    return (
        member is not None
        and command.says_nothing_new
        and command.member_epoch == member.current.epoch == group.target_epoch
        and member.current.state is MemberState.STABLE
        and group.is_up_to_date
        and command.instance_id in (None, member.metadata.instance_id)
        and command.client_id == member.metadata.client_id
        and command.client_host == member.metadata.client_host
        and member.metadata.classic is None
    )


def decide_heartbeat(
    group: ConsumerGroup, command: ConsumerHeartbeat, setting: Setting, now: Now, out: Decision
) -> ConsumerHeartbeatReply:
    """Take a sound heartbeat that is not plain."""
    seated = _seated(group, command)
    old = _find(group, command) if seated is None else seated
    _check_epoch(old, command)
    metadata = _updated(group.group_id, old, command)
    setting.check_room(old, metadata)
    ahead = group
    if old is None or metadata != old.metadata or is_behind(group, now):
        draft = Draft(group.copy(), out)
        ahead = draft.group
        if seated is not None:
            take_seat(draft, seated, command.member_id)
        if old is None or metadata != old.metadata:
            draft.write(metadata)
        advance_group(draft, is_changed=is_resubscribed(old, metadata), setting=setting, now=now)
        group.changed_topics, group.assigned_ms = ahead.changed_topics, ahead.assigned_ms
    # Who joins has empty hands, whatever it had.
    owned = NOTHING if command.member_epoch == JOIN_EPOCH else command.owned
    member = advance_member(ahead, command.member_id, owned, setting, now, out)
    setting.touch(group.group_id, member, now)
    is_told = command.is_full or old is None or old.current.assigned != member.current.assigned
    return ConsumerHeartbeatReply(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=setting.config.consumer_heartbeat_interval_ms,
        assignment=member.current.assigned if is_told else None,
    )


# The member -----------------------------------------------------------------------------------------------------------


def _seated(group: ConsumerGroup, command: ConsumerHeartbeat) -> ConsumerMember | None:
    """The static member whose seat a new process asks for; None: there is none, or it is the same process."""
    instance_id = command.instance_id
    if instance_id is None or command.member_epoch != JOIN_EPOCH:
        return None
    seated_id = group.static_ids.get(instance_id)
    if seated_id is None or seated_id == command.member_id:
        return None
    seated = group.members[seated_id]
    if seated.epoch != LEAVE_STATIC_EPOCH and not seated.is_classic:
        message = f"Another member has the instance id {instance_id[:100]} and did not leave"
        raise Refused(ErrorCode.unreleased_instance_id, message)
    return seated


def _find(group: ConsumerGroup, command: ConsumerHeartbeat) -> ConsumerMember | None:
    """The member that the request speaks for; None: it is new."""
    if command.member_epoch == JOIN_EPOCH:
        return group.members.get(command.member_id)
    return find_member(group, command.member_id, command.instance_id)


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        seated_id = group.static_ids.get(instance_id)
        if seated_id is None:
            raise Refused(ErrorCode.unknown_member_id, f"Instance id {instance_id[:100]} is unknown")
        if seated_id != member_id:
            raise Refused(ErrorCode.fenced_instance_id, f"Another member has the instance id {instance_id[:100]}")
    member = group.members.get(member_id)
    if member is None:
        raise Refused(ErrorCode.unknown_member_id, f"Member {member_id[:100]} is not in the group")
    return member


def take_seat(draft: Draft, seated: ConsumerMember, member_id: str) -> None:
    """A static member is back under another id: what was its is its again."""
    group = draft.group
    target = group.target(seated.member_id)
    write_removal(draft, seated.member_id)
    draft.write(seated.metadata._replace(member_id=member_id))
    draft.write(ConsumerGroupTargetAssignmentMember(group_id=group.group_id, member_id=member_id, partitions=target))
    draft.write(seated.current._replace(member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH))


def _check_epoch(member: ConsumerMember | None, command: ConsumerHeartbeat) -> None:
    if member is None or command.member_epoch == JOIN_EPOCH:
        return
    if member.is_classic:
        raise Refused(ErrorCode.unknown_member_id, "The member speaks the classic protocol")
    current, epoch = member.current, command.member_epoch
    if epoch == current.epoch:
        return
    has_missed_an_answer = epoch == current.previous_epoch < current.epoch
    if not has_missed_an_answer or command.owned is None or not is_within(command.owned, current.assigned):
        message = f"Member epoch is {epoch}, expected is {current.epoch}: abandon all partitions and rejoin"
        raise Refused(ErrorCode.fenced_member_epoch, message)


def _updated(group_id: str, old: ConsumerMember | None, command: ConsumerHeartbeat) -> ConsumerGroupMemberMetadata:
    """What a request leaves out stays as it was, unless it is a first one. An empty regular expression is none."""
    known = _NEW if old is None else old.metadata
    is_first = command.member_epoch == JOIN_EPOCH
    names = (() if is_first else known.topic_names) if command.topic_names is None else command.topic_names
    regex = (None if is_first else known.topic_regex) if command.topic_regex is None else command.topic_regex or None
    if regex is not None and regex != known.topic_regex:
        check_regex(regex)
    timeout_ms = known.rebalance_timeout_ms if command.rebalance_timeout_ms < 0 else command.rebalance_timeout_ms
    return ConsumerGroupMemberMetadata(
        group_id=group_id,
        member_id=command.member_id,
        instance_id=known.instance_id if command.instance_id is None else command.instance_id,
        rack_id=known.rack_id if command.rack_id is None else command.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=names,
        topic_regex=regex,
        rebalance_timeout_ms=timeout_ms,
        server_assignor=known.server_assignor if command.server_assignor is None else command.server_assignor,
    )


_NEW = ConsumerGroupMemberMetadata(group_id="", member_id="")


def is_resubscribed(old: ConsumerMember | None, new: ConsumerGroupMemberMetadata) -> bool:
    if old is None or old.metadata.topic_regex != new.topic_regex:
        return True
    return frozenset(old.metadata.topic_names) != frozenset(new.topic_names)


# The group, and the member's next step --------------------------------------------------------------------------------


def is_behind(group: ConsumerGroup, now: Now) -> bool:
    """Whether the group's topics are to be looked at, or its target is due."""
    return group.changed_topics is None or bool(group.changed_topics) or _is_target_due(group, now)


def _is_target_due(group: ConsumerGroup, now: Now) -> bool:
    """A large group is not assigned anew for each of a thousand members that start together."""
    if group.epoch == group.target_epoch:
        return False
    size = len(group.members) + sum(topic.partition_count for topic in group.topics.values())
    if group.assigned_ms is None or size < LARGE_FROM:
        return True
    return now.timer_ms - group.assigned_ms >= size // SIZE_PER_MS


def advance_group(draft: Draft, *, is_changed: bool, setting: Setting, now: Now) -> None:
    """A new epoch if members or topics changed, and the target that goes with it."""
    group = draft.group
    if is_changed or group.changed_topics is None or group.changed_topics:
        is_changed |= maybe_refresh(draft, setting.topics, now)
    if is_changed:
        bump_epoch(draft)
    if _is_target_due(group, now):
        update_target(draft, setting.config.consumer_assignors[0])
        group.assigned_ms = now.timer_ms


def advance_member(
    group: ConsumerGroup, member_id: str, owned: Assignment | None, setting: Setting, now: Now, out: Decision
) -> ConsumerMember:
    """The member, brought nearer to its target as far as it and the others allow."""
    member = group.members[member_id]
    current = reconcile(member.current, group.target_epoch, group.target(member_id), owned, group.owner)
    if current is member.current:
        return member
    out.records.append(current)
    if not member.is_classic:  # Those have time to rejoin and to sync; `classic_member` sees to that.
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            setting.await_rebalance(group.group_id, member, now)
        else:
            setting.end_rebalance(group.group_id, member_id)
    return member._replace(current=current)


def decide_static_leave(group: ConsumerGroup, member: ConsumerMember, out: Decision) -> ConsumerHeartbeatReply:
    """A static member goes and will be back: its partitions wait for it until its session ends."""
    out.records.append(
        ConsumerGroupCurrentMemberAssignment(
            group_id=group.group_id,
            member_id=member.member_id,
            epoch=LEAVE_STATIC_EPOCH,
            previous_epoch=member.current.previous_epoch,
            state=member.current.state,
            assigned=member.current.assigned,
        )
    )
    return ConsumerHeartbeatReply(member_id=member.member_id, member_epoch=LEAVE_STATIC_EPOCH)
