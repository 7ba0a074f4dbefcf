"""The consumer groups of one `__consumer_offsets` partition: which group a request is for, and what becomes of it.

Part of GroupShard, which has the classic groups, the offsets and the log. A group id is here or there, never in both,
but for the moment between a decision that moves it and its records being applied.
"""

from collections.abc import Callable, Collection

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from penstock.coordinator.group.consumer.classic_member import (
    decide_classic_heartbeat,
    decide_classic_join,
    decide_classic_sync,
    find_leaving,
)
from penstock.coordinator.group.consumer.commands import ConsumerHeartbeat, check_heartbeat
from penstock.coordinator.group.consumer.conversion import can_downgrade, downgrade, release, upgrade
from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.heartbeat import decide_heartbeat, decide_static_leave, find_member, is_plain
from penstock.coordinator.group.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    MEMBER_BYTES,
    ConsumerMember,
    held_bytes,
)
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.consumer.records import (
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
    ConsumerGroupTombstone,
    ConsumerRecord,
    RecordKind,
)
from penstock.coordinator.group.consumer.removal import remove_members, write_group_removal
from penstock.coordinator.group.consumer.replies import ConsumerHeartbeatReply
from penstock.coordinator.group.consumer.setting import Setting
from penstock.coordinator.group.consumer.topics import Topics
from penstock.coordinator.group.deadlines import Key
from penstock.coordinator.group.decision import Decision, Now, Reply, Token, replied
from penstock.coordinator.group.replies import HeartbeatReply, JoinReply, LeaveReply, SyncReply


class ConsumerGroups:
    def __init__(self, *, setting: Setting, new_classic: Callable[[str], ClassicGroup]) -> None:
        self.setting = setting
        self.groups: dict[str, ConsumerGroup] = {}
        self._new_classic = new_classic

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self.groups.get(group_id)

    # Members of the new protocol ----------------------------------------------------------------------------------

    def heartbeat(
        self, command: ConsumerHeartbeat, classic: ClassicGroup | None, token: Token, now: Now
    ) -> tuple[Decision, ClassicGroup | None]:
        """`classic`: the group of that name in the classic protocol. Gives the one that comes of a downgrade."""
        group = self.groups.get(command.group_id)
        if group is not None and is_plain(group, command):
            self.setting.touch(group.group_id, group.members[command.member_id], now)
            reply = ConsumerHeartbeatReply(
                member_id=command.member_id,
                member_epoch=command.member_epoch,
                heartbeat_interval_ms=self.setting.config.consumer_heartbeat_interval_ms,
            )
            return Decision(replies_on_commit=[Reply(token, reply)]), None
        out = Decision()
        downgraded = None
        try:
            check_heartbeat(command, self.setting.config)
            if command.is_leaving:
                reply, downgraded = self._leave(group, command, now, out)
            else:
                reply = self._beat(group, command, classic, now, out)
        except Refused as refused:
            return replied(token, ConsumerHeartbeatReply(error_code=refused.code, error_message=refused.message)), None
        out.replies_on_commit.append(Reply(token, reply))
        return out, downgraded

    def _beat(
        self,
        group: ConsumerGroup | None,
        command: ConsumerHeartbeat,
        classic: ClassicGroup | None,
        now: Now,
        out: Decision,
    ) -> ConsumerHeartbeatReply:
        if not command.member_id:
            command = command._replace(member_id=self.setting.new_unique_id())
        if group is not None:
            self._check_room(group, command)
            return decide_heartbeat(group, command, self.setting, now, out)
        if command.member_epoch != JOIN_EPOCH:
            raise Refused(ErrorCode.unknown_member_id, "The group has no such member")
        if classic is None:
            return decide_heartbeat(ConsumerGroup(command.group_id), command, self.setting, now, out)
        upgraded = upgrade(classic, self.setting, out)
        self._check_room(upgraded, command)
        reply = decide_heartbeat(upgraded, command, self.setting, now, out)
        release(classic, upgraded, self.setting, now, out)
        return reply

    def _check_room(self, group: ConsumerGroup, command: ConsumerHeartbeat) -> None:
        if command.member_epoch != JOIN_EPOCH or command.member_id in group.members:
            return
        is_seated = command.instance_id is not None and command.instance_id in group.static_ids
        if not is_seated and len(group.members) >= self.setting.config.consumer_max_size:
            message = f"The group has its maximum of {self.setting.config.consumer_max_size} members"
            raise Refused(ErrorCode.group_max_size_reached, message)

    def _leave(
        self, group: ConsumerGroup | None, command: ConsumerHeartbeat, now: Now, out: Decision
    ) -> tuple[ConsumerHeartbeatReply, ClassicGroup | None]:
        if group is None:
            raise Refused(ErrorCode.unknown_member_id, "The group has no such member")
        member = find_member(group, command.member_id, command.instance_id)
        if command.member_epoch == LEAVE_STATIC_EPOCH:
            return decide_static_leave(group, member, out), None
        downgraded = self._remove(Draft(group.copy(), out), [member.member_id], now, out)
        reply = ConsumerHeartbeatReply(member_id=member.member_id, member_epoch=command.member_epoch)
        return reply, downgraded

    def _remove(self, draft: Draft, member_ids: Collection[str], now: Now, out: Decision) -> ClassicGroup | None:
        """Take members out. If that leaves none of the new protocol, the classic group that it becomes comes back."""
        remove_members(draft, member_ids, self.setting.topics, now)
        return self._downgrade(draft, now, out) if can_downgrade(draft.group, self.setting) else None

    def _downgrade(self, draft: Draft, now: Now, out: Decision) -> ClassicGroup:
        group_id = draft.group.group_id
        return downgrade(draft, self.setting, lambda: self._new_classic(group_id), now, out)

    # Members of the classic protocol ------------------------------------------------------------------------------

    def classic_join(
        self, group: ConsumerGroup, command: JoinGroup, token: Token, now: Now
    ) -> tuple[Decision, ClassicGroup | None]:
        out = Decision()
        try:
            reply, draft = decide_classic_join(group, command, self.setting, now, out)
        except Refused as refused:
            is_given = refused.code is ErrorCode.member_id_required
            member_id = f"{command.client_id[:255]}-{self.setting.new_unique_id()}" if is_given else command.member_id
            return replied(token, JoinReply(error_code=refused.code, member_id=member_id)), None
        downgraded = None
        if can_downgrade(draft.group, self.setting):
            # It has the seat of the last static member of the new protocol. It joins once more, a classic group.
            downgraded = self._downgrade(draft, now, out)
            reply = JoinReply(error_code=ErrorCode.rebalance_in_progress, member_id=reply.member_id)
        out.replies_on_commit.append(Reply(token, reply))
        return out, downgraded

    def classic_sync(self, group: ConsumerGroup, command: SyncGroup, token: Token, now: Now) -> Decision:
        try:
            reply = decide_classic_sync(group, command, self.setting, now)
        except Refused as refused:
            reply = SyncReply(error_code=refused.code)
        return Decision(replies_on_commit=[Reply(token, reply)])

    def classic_heartbeat(self, group: ConsumerGroup, command: Heartbeat, token: Token, now: Now) -> Decision:
        out = Decision()
        try:
            code = decide_classic_heartbeat(group, command, self.setting, now, out)
        except Refused as refused:
            code = refused.code
        out.replies_on_commit.append(Reply(token, HeartbeatReply(error_code=code)))
        return out

    def classic_leave(
        self, group: ConsumerGroup, command: LeaveGroup, token: Token, now: Now
    ) -> tuple[Decision, ClassicGroup | None]:
        out = Decision()
        leaving, left = find_leaving(group, command)
        downgraded = self._remove(Draft(group.copy(), out), leaving, now, out) if leaving else None
        out.replies_on_commit.append(Reply(token, LeaveReply(members=left)))
        return out, downgraded

    # Groups -------------------------------------------------------------------------------------------------------

    def delete(self, group: ConsumerGroup, out: Decision) -> None:
        write_group_removal(Draft(group.copy(), out))

    def on_topics_changed(self, topics: Topics, names: Collection[str]) -> None:
        """The next heartbeat of a group that is concerned looks at what became of them."""
        self.setting.topics = topics
        for group in self.groups.values():
            if group.changed_topics is not None:
                if group.regex_counts:
                    group.changed_topics.update(names)
                else:
                    group.changed_topics.update(name for name in names if name in group.topic_counts)

    # Time ---------------------------------------------------------------------------------------------------------

    def on_deadline(self, key: Key, drafts: dict[str, Draft | None], now: Now, out: Decision) -> ClassicGroup | None:
        """A member's time is over. `drafts`: the groups that this decision changed already; None: to classic ones."""
        group = self.groups.get(key.group_id)
        if group is None or key.member_id not in group.members:
            return None  # What it was set for was never appended.
        if key.group_id not in drafts:
            drafts[key.group_id] = Draft(group.copy(), out)
        draft = drafts[key.group_id]
        if draft is None or key.member_id not in draft.group.members:
            return None
        downgraded = self._remove(draft, [key.member_id], now, out)
        if downgraded is not None:
            drafts[key.group_id] = None
        return downgraded

    # The log ------------------------------------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> None:
        group = self.groups.get(record.group_id)
        if isinstance(record, ConsumerGroupTombstone):
            if group is None:
                return
            if record.kind is RecordKind.MEMBER and record.subject in group.members:
                self._release(group.members[record.subject])
            group.apply(record)
            if not group.is_known:
                del self.groups[record.group_id]
            return
        if group is None:
            group = self.groups[record.group_id] = ConsumerGroup(record.group_id)
        if isinstance(record, ConsumerGroupMemberMetadata):
            old = group.members.get(record.member_id)
            self.setting.budget.add(held_bytes(record) - (0 if old is None else old.held_bytes))
        elif isinstance(record, ConsumerGroupCurrentMemberAssignment) and record.member_id not in group.members:
            self.setting.budget.add(MEMBER_BYTES)
        group.apply(record)

    def _release(self, member: ConsumerMember) -> None:
        self.setting.forget(member.metadata.group_id, member.member_id)
        self.setting.budget.add(-member.held_bytes)

    def unload(self) -> None:
        for group_id in list(self.groups):
            self.drop(group_id)

    def drop(self, group_id: str) -> None:
        """The log says that it is a classic group now."""
        group = self.groups.pop(group_id, None)
        for member in () if group is None else group.members.values():
            self._release(member)

    def on_loaded(self, now: Now) -> None:
        """Members get a session to be heard of in, and who has to give something up the time for it."""
        for group in self.groups.values():
            for member in group.forget_unnamed():
                self._release(member)
            group.changed_topics = None
            for member in group.members.values():
                self.setting.touch(group.group_id, member, now)
                if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                    self.setting.await_rebalance(group.group_id, member, now)

    def on_append_failed(self, records: Collection[ConsumerRecord], now: Now) -> None:
        """Nothing of it was applied: who should have gone is waited for once more, topics are looked at again."""
        for record in records:
            group = self.groups.get(record.group_id)
            if group is None:
                continue
            group.changed_topics = None
            if isinstance(record, ConsumerGroupTombstone) and record.subject in group.members:
                self.setting.touch(record.group_id, group.members[record.subject], now)
