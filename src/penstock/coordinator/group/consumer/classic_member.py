"""Members that speak the classic protocol to a group of the new one, while it is on its way from one to the other.

To them the broker is a leader that assigns: JoinGroup is answered at once with the member's epoch as the generation,
SyncGroup with what is the member's. When it has to come again, a heartbeat says REBALANCE_IN_PROGRESS, and it has its
rebalance timeout for it.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.commands import Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.embedded_protocol import read_subscription, with_ids, write_assignment
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.heartbeat import (
    advance_group,
    advance_member,
    find_member,
    is_behind,
    is_resubscribed,
    take_seat,
)
from penstock.coordinator.group.consumer.member import ConsumerMember
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.consumer.records import ClassicMetadata, ConsumerGroupMemberMetadata
from penstock.coordinator.group.consumer.setting import Setting
from penstock.coordinator.group.decision import Decision, Now
from penstock.coordinator.group.member import rebalance_timeout_ms
from penstock.coordinator.group.replies import JoinReply, LeftMember, SyncReply
from penstock.coordinator.group.subscription import CONSUMER_PROTOCOL

MEMBER_ID_REQUIRED_FROM = 4


def decide_classic_join(
    group: ConsumerGroup, command: JoinGroup, setting: Setting, now: Now, out: Decision
) -> tuple[JoinReply, Draft]:
    """Take a join that is sound by itself. Gives the group as it will be, too."""
    seated = _seated(group, command)
    if not command.member_id and command.instance_id is None and command.version >= MEMBER_ID_REQUIRED_FROM:
        raise Refused(ErrorCode.member_id_required)
    member_id = command.member_id or setting.new_unique_id()
    old = group.members.get(member_id) if seated is None else seated
    _check_join(group, old, command, setting)
    subscription = read_subscription(command.protocols[0].metadata)
    if subscription is None:
        raise Refused(ErrorCode.inconsistent_group_protocol)
    if old is None and command.member_id and any(numbers for _, numbers in subscription.owned):
        # It was a member, and others have by now what it thinks it owns: it learns that before it is one again.
        raise Refused(ErrorCode.unknown_member_id)
    metadata = ConsumerGroupMemberMetadata(
        group_id=group.group_id,
        member_id=member_id,
        instance_id=command.instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=subscription.topics,
        rebalance_timeout_ms=rebalance_timeout_ms(command),
        classic=ClassicMetadata(command.session_timeout_ms, command.protocols),
    )
    setting.check_room(old, metadata)
    draft = Draft(group.copy(), out)
    if seated is not None:
        take_seat(draft, seated, member_id)
    draft.write(metadata)
    advance_group(draft, is_changed=is_resubscribed(old, metadata), setting=setting, now=now)
    group.changed_topics, group.assigned_ms = draft.group.changed_topics, draft.group.assigned_ms
    owned = with_ids(subscription.owned, setting.topics)
    member = advance_member(draft.group, member_id, owned, setting, now, out)
    setting.touch(group.group_id, member, now)
    setting.await_rebalance(group.group_id, member, now)  # Until it has sent SyncGroup.
    draft.group.apply(member.current)
    reply = JoinReply(
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=command.protocols[0].name,
        member_id=member_id,
    )
    return reply, draft


def _seated(group: ConsumerGroup, command: JoinGroup) -> ConsumerMember | None:
    """The static member whose seat is taken by a process that has no member id yet: the last one wins."""
    if command.instance_id is None:
        return None
    if command.member_id:
        find_member(group, command.member_id, command.instance_id)
        return None
    return group.members.get(group.static_ids.get(command.instance_id, ""))


def _check_join(group: ConsumerGroup, old: ConsumerMember | None, command: JoinGroup, setting: Setting) -> None:
    if old is None and len(group.members) >= setting.config.consumer_max_size:
        raise Refused(ErrorCode.group_max_size_reached)
    if command.protocol_type != CONSUMER_PROTOCOL:
        raise Refused(ErrorCode.inconsistent_group_protocol)
    if group.classic_count and not group.classic_protocols.has_common(command.protocols):
        raise Refused(ErrorCode.inconsistent_group_protocol)


def decide_classic_sync(group: ConsumerGroup, command: SyncGroup, setting: Setting, now: Now) -> SyncReply:
    member, classic = _find_classic(group, command.member_id, command.instance_id, command.generation_id)
    protocol = classic.protocols[0]
    if command.protocol_type not in (None, CONSUMER_PROTOCOL) or command.protocol_name not in (None, protocol.name):
        raise Refused(ErrorCode.inconsistent_group_protocol)
    if member.epoch < group.target_epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        setting.await_rebalance(group.group_id, member, now)
        raise Refused(ErrorCode.rebalance_in_progress)
    setting.end_rebalance(group.group_id, member.member_id)
    setting.touch(group.group_id, member, now)
    subscription = read_subscription(protocol.metadata)
    version = 0 if subscription is None else subscription.version
    return SyncReply(
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=protocol.name,
        assignment=write_assignment(member.current.assigned, setting.topics, version),
    )


def decide_classic_heartbeat(
    group: ConsumerGroup, command: Heartbeat, setting: Setting, now: Now, out: Decision
) -> ErrorCode:
    member, _ = _find_classic(group, command.member_id, command.instance_id, command.generation_id)
    setting.touch(group.group_id, member, now)
    if is_behind(group, now):
        draft = Draft(group.copy(), out)
        advance_group(draft, is_changed=False, setting=setting, now=now)
        group.changed_topics, group.assigned_ms = draft.group.changed_topics, draft.group.assigned_ms
        group = draft.group
    if not _must_rejoin(group, member):
        return ErrorCode.none
    if not setting.is_rebalance_awaited(group.group_id, member.member_id):
        setting.await_rebalance(group.group_id, member, now)
    return ErrorCode.rebalance_in_progress


def _must_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """For a new target, to confirm what it gave up, or because what it waits for is free."""
    current = member.current
    if current.epoch < group.target_epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if current.state is MemberState.STABLE:
        return False
    return not any(
        group.owner(topic_id, partition) not in (None, member.member_id)
        for topic_id, partitions in group.target(member.member_id).items()
        for partition in partitions
    )


def _find_classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> tuple[ConsumerMember, ClassicMetadata]:
    member = find_member(group, member_id, instance_id)
    if member.metadata.classic is None:
        raise Refused(ErrorCode.unknown_member_id)
    if generation_id != member.epoch:
        raise Refused(ErrorCode.illegal_generation)
    return member, member.metadata.classic


def find_leaving(group: ConsumerGroup, command: LeaveGroup) -> tuple[list[str], tuple[LeftMember, ...]]:
    """The ids of the members that go, and what each is told. An operator may name a seat of either protocol."""
    leaving: dict[str, None] = {}
    left = []
    for one in command.members:
        try:
            member = _find_leaving(group, one)
        except Refused as refused:
            left.append(LeftMember(*one, refused.code))
        else:
            leaving[member.member_id] = None
            left.append(LeftMember(*one, ErrorCode.none))
    return list(leaving), tuple(left)


def _find_leaving(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember:
    member_id, instance_id = leaving
    if instance_id is not None and not member_id:
        member_id = group.static_ids.get(instance_id, "")
    member = find_member(group, member_id, instance_id)
    if member.metadata.classic is None and instance_id is None:
        raise Refused(ErrorCode.unknown_member_id)
    return member
