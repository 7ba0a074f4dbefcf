"""From a classic group to one of the new protocol and back, while its members read on.

Up: a member of the new protocol joins a group of Kafka's classic consumers. Who those are and what they have becomes
the records of a consumer group, in which they go on as classic members; with the new member comes a new epoch, so that
a heartbeat tells them to rejoin. Down: the last member of the new protocol goes. What is left becomes a classic group
that is about to rebalance.

Epochs go on where generations were, and the other way round, so that nobody is ever taken back to an earlier one.
Nothing here touches the classic group that is given up: `release` does, once the decision stands.
"""

from collections.abc import Callable
from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.consumer.assignment import Assignment, assignment_of
from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.embedded_protocol import (
    EmbeddedSubscription,
    read_assignment,
    read_subscription,
    with_ids,
    write_assignment,
)
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.consumer.records import (
    ClassicMetadata,
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
    ConsumerGroupMetadata,
    ConsumerGroupTargetAssignmentMember,
    ConsumerGroupTargetAssignmentMetadata,
)
from penstock.coordinator.group.consumer.removal import write_group_removal
from penstock.coordinator.group.consumer.setting import Setting
from penstock.coordinator.group.consumer.topics import Topics
from penstock.coordinator.group.decision import Decision, Now
from penstock.coordinator.group.member import Member
from penstock.coordinator.group.rebalance import prepare_rebalance
from penstock.coordinator.group.records import GroupDeleted, GroupMetadata, MemberMetadata
from penstock.coordinator.group.replies import JoinReply, SyncReply
from penstock.coordinator.group.states import GroupState
from penstock.coordinator.group.subscription import CONSUMER_PROTOCOL

# Up -------------------------------------------------------------------------------------------------------------------


def upgrade(classic: ClassicGroup, setting: Setting, out: Decision) -> ConsumerGroup:
    """The group as it would be in the new protocol, its records in `out`. Refused when it cannot be."""
    subscriptions = {member.member_id: _subscription(classic, member) for member in classic.members.values()}
    members = [member for member in classic.members.values() if not member.is_new]
    draft = Draft(ConsumerGroup(classic.group_id), out)
    if classic.stored is not None or classic.members:
        out.records.append(GroupDeleted(group_id=classic.group_id))
    if classic.members:
        _check_upgrade(classic, setting)
    for member in members:  # The others do not know their ids yet, and begin anew.
        draft.write(_member_metadata(classic.group_id, member, subscriptions[member.member_id]))
    if classic.generation_id > 0:
        draft.write(ConsumerGroupMetadata(group_id=classic.group_id, epoch=classic.generation_id))
    if not members:
        return draft.group
    taken: set[tuple[UUID, int]] = set()
    shares = {
        member.member_id: _claim(with_ids(read_assignment(member.assignment) or [], setting.topics), taken)
        for member in members
    }
    for member_id, partitions in shares.items():
        draft.write(
            ConsumerGroupTargetAssignmentMember(group_id=classic.group_id, member_id=member_id, partitions=partitions)
        )
    draft.write(ConsumerGroupTargetAssignmentMetadata(group_id=classic.group_id, epoch=classic.generation_id))
    for member_id, partitions in shares.items():
        # A cooperative member may not have heard yet that it has to give up what it had when it joined.
        to_revoke = _claim(with_ids(subscriptions[member_id].owned, setting.topics), taken)
        draft.write(
            ConsumerGroupCurrentMemberAssignment(
                group_id=classic.group_id,
                member_id=member_id,
                epoch=classic.generation_id,
                previous_epoch=classic.generation_id,
                state=MemberState.UNREVOKED_PARTITIONS if to_revoke else MemberState.STABLE,
                assigned=partitions,
                to_revoke=to_revoke,
            )
        )
    return draft.group


def _check_upgrade(classic: ClassicGroup, setting: Setting) -> None:
    if not setting.config.migration_policy.can_upgrade:
        raise _no_upgrade("group.consumer.migration.policy does not allow it")
    if len(classic.members) > setting.config.consumer_max_size:
        raise _no_upgrade("it has more members than group.consumer.max.size")


def _subscription(classic: ClassicGroup, member: Member) -> EmbeddedSubscription:
    protocol = classic.protocol_name or member.protocols[0].name
    subscription = read_subscription(member.metadata(protocol)) if classic.uses_consumer_protocol else None
    if subscription is None:
        raise _no_upgrade("its members do not use the protocol of Kafka's consumers")
    return subscription


def _no_upgrade(why: str) -> Refused:
    return Refused(ErrorCode.group_id_not_found, f"The group is a classic group that cannot be upgraded: {why}")


def _member_metadata(group_id: str, member: Member, subscription: EmbeddedSubscription) -> ConsumerGroupMemberMetadata:
    return ConsumerGroupMemberMetadata(
        group_id=group_id,
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
    )


def _claim(wanted: Assignment, taken: set[tuple[UUID, int]]) -> Assignment:
    """What of it nobody has, which is `taken` now: a partition that a leader gave to two belongs to the first."""
    free = assignment_of(
        (topic_id, partition)
        for topic_id, partitions in wanted.items()
        for partition in partitions
        if (topic_id, partition) not in taken
    )
    taken.update((topic_id, partition) for topic_id, partitions in free.items() for partition in partitions)
    return free


def release(classic: ClassicGroup, group: ConsumerGroup, setting: Setting, now: Now, out: Decision) -> None:
    """The classic group is given up: who waits in it joins again, and who is not known by its id begins anew."""
    for member in list(classic.members.values()):
        if member.is_new:
            classic.remove(member.member_id, ErrorCode.unknown_member_id, out)
            continue
        code = ErrorCode.rebalance_in_progress
        classic.answer_join(member, JoinReply(error_code=code, member_id=member.member_id), out)
        classic.answer_sync(member, SyncReply(error_code=code), out)
        classic.touch(member, now)
        setting.touch(group.group_id, group.members[member.member_id], now)


# Down -----------------------------------------------------------------------------------------------------------------


def can_downgrade(group: ConsumerGroup, setting: Setting) -> bool:
    is_classic = 0 < len(group.members) == group.classic_count <= setting.config.max_size
    return is_classic and setting.config.migration_policy.can_downgrade


def downgrade(
    draft: Draft, setting: Setting, new_group: Callable[[], ClassicGroup], now: Now, out: Decision
) -> ClassicGroup:
    """The draft's group as a classic one that rebalances; the records of both are in `out`."""
    record = _group_metadata(draft.group, setting.topics, now)
    write_group_removal(draft)
    out.records.append(record)
    classic = new_group()
    classic.on_stored(record)
    classic.restore(now)
    assert classic.state is GroupState.STABLE, f"{classic.group_id!r} has no members"
    prepare_rebalance(classic, now, out)
    return classic


def _group_metadata(group: ConsumerGroup, topics: Topics, now: Now) -> GroupMetadata:
    protocols = {member.member_id: _protocols(group, member.member_id) for member in group.members.values()}
    protocol = group.classic_protocols.select(protocols.values())
    return GroupMetadata(
        group_id=group.group_id,
        protocol_type=CONSUMER_PROTOCOL,
        # What members were told at the most: those heartbeat on, and are told to rejoin.
        generation_id=max(group.target_epoch, 1),
        protocol=protocol,
        leader=next(iter(group.members)),
        state_timestamp_ms=now.wall_ms,
        members=tuple(_stored_member(group, member_id, protocol, topics) for member_id in group.members),
    )


def _protocols(group: ConsumerGroup, member_id: str) -> tuple[Protocol, ...]:
    classic = group.members[member_id].metadata.classic
    assert classic is not None, f"{member_id} is not a classic member"
    return classic.protocols


def _stored_member(group: ConsumerGroup, member_id: str, protocol: str, topics: Topics) -> MemberMetadata:
    member = group.members[member_id]
    classic = member.metadata.classic
    assert classic is not None, f"{member_id} is not a classic member"
    metadata = next(item.metadata for item in classic.protocols if item.name == protocol)
    subscription = read_subscription(metadata)
    version = 0 if subscription is None else subscription.version
    return MemberMetadata(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.metadata.client_id,
        client_host=member.metadata.client_host,
        rebalance_timeout_ms=member.metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        subscription=metadata,
        assignment=write_assignment(member.current.assigned, topics, version),
    )
