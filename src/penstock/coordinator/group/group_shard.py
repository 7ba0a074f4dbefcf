"""The groups and committed offsets of one `__consumer_offsets` partition.

Inputs: commands with a token and the time, `on_tick` at `next_deadline_ms`, and `apply` with every record appended.
Outputs: a Decision each; decision.py says what the shell does with it.
Invariants: a command changes nothing that must survive; `apply` does, and never refuses. Every token comes back once.
Driven by the coordinator's runtime, which knows partitions, high watermarks and clocks.

    load      apply every record of the partition, then on_loaded; until then answer COORDINATOR_LOAD_IN_PROGRESS
    unload    leadership is gone: everyone who waits is told, and the object is not used again
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable

from penstock.base.errors import ErrorCode
from penstock.coordinator.group import views
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import (
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroups,
    DeleteOffsets,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from penstock.coordinator.group.consumer import views as consumer_views
from penstock.coordinator.group.consumer.commands import ConsumerHeartbeat
from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.groups import ConsumerGroups
from penstock.coordinator.group.consumer.offset_checks import (
    check_consumer_commit,
    check_consumer_fetch,
    expired_consumer_offsets,
)
from penstock.coordinator.group.consumer.records import ConsumerGroupTombstone, ConsumerRecord
from penstock.coordinator.group.consumer.setting import Setting
from penstock.coordinator.group.consumer.topics import Topics
from penstock.coordinator.group.deadlines import Deadlines, Key, Kind
from penstock.coordinator.group.decision import Decision, Now, Reply, Token, replied
from penstock.coordinator.group.group_config import DEFAULT_GROUP_CONFIG, GroupConfig
from penstock.coordinator.group.heartbeat import decide_heartbeat
from penstock.coordinator.group.join import check_join, decide_join
from penstock.coordinator.group.leave import decide_leave
from penstock.coordinator.group.member_budget import MemberBudget
from penstock.coordinator.group.offset_commit import check_and_touch, decide_commit, decide_delete
from penstock.coordinator.group.offset_expiry import expired_offsets
from penstock.coordinator.group.offsets import OffsetStore, fetch_offsets
from penstock.coordinator.group.pending_offsets import PendingBudget, PendingOffsets
from penstock.coordinator.group.rebalance import (
    maybe_complete_join,
    on_join_deadline,
    on_session_deadline,
    on_sync_deadline,
    prepare_rebalance,
)
from penstock.coordinator.group.records import (
    GroupDeleted,
    GroupMetadata,
    GroupRecord,
    OffsetCommitted,
    OffsetDeleted,
)
from penstock.coordinator.group.replies import (
    DeletedGroup,
    DeleteGroupsReply,
    FetchReply,
    HeartbeatReply,
    JoinReply,
    LeaveReply,
    LeftMember,
    SyncReply,
)
from penstock.coordinator.group.states import GroupState
from penstock.coordinator.group.sync import decide_sync
from penstock.coordinator.group.txn_offset_commit import check_txn_commit, decide_txn_commit

CLOCK_JUMP_MS = 3_600_000  # More than any clock correction, and far less than a retention that anyone sets.


class GroupShard:
    def __init__(
        self,
        *,
        new_unique_id: Callable[[], str],
        config: GroupConfig = DEFAULT_GROUP_CONFIG,
        budget: MemberBudget | None = None,  # Shared by all shards of a broker.
        pending_budget: PendingBudget | None = None,  # Likewise.
    ) -> None:
        self.config = config
        self.budget = MemberBudget(config.members_bytes_max) if budget is None else budget
        self.pending_budget = pending_budget or PendingBudget(config.pending_offsets_bytes_max)
        self.offsets = OffsetStore()
        self.pending_offsets = PendingOffsets(self.pending_budget)  # In open transactions.
        # Every classic group with a record, an offset, committed or not, a member or a pending id.
        self.groups: dict[str, ClassicGroup] = {}
        self.deadlines = Deadlines()
        self.consumers = ConsumerGroups(
            setting=Setting(config=config, deadlines=self.deadlines, budget=self.budget, new_unique_id=new_unique_id),
            new_classic=self._new_group,
        )
        self._new_unique_id = new_unique_id
        self._given_ids: deque[tuple[str, str]] = deque()  # Pending (group, member) ids and used ones, oldest first.
        self._last_expiry: Now | None = None

    @property
    def next_deadline_ms(self) -> int | None:
        """When `on_tick` is due, on the timer's clock; None: nothing waits. To be asked again after every call."""
        return self.deadlines.next_ms

    # Members ------------------------------------------------------------------------------------------------------

    def join(self, command: JoinGroup, token: Token, now: Now) -> Decision:
        code = check_join(command, self.config)
        if code is not ErrorCode.none:
            return replied(token, JoinReply(error_code=code, member_id=command.member_id))
        out = Decision()
        consumer = self._consumer(command.group_id)
        if consumer is not None and consumer.members:
            out, downgraded = self.consumers.classic_join(consumer, command, token, now)
            self._adopt(downgraded)
            return out
        group = self.groups.get(command.group_id) or self._new_group(command.group_id)
        if consumer is not None:
            self.consumers.delete(consumer, out)
            group.generation_id = consumer.epoch
        given_id = decide_join(group, command, token, now, out)
        self.groups[command.group_id] = group
        self._drop_if_vacant(group)
        if given_id is not None:
            self._given_ids.append((command.group_id, given_id))
            if len(self._given_ids) > self.config.pending_ids_max:
                self._forget_oldest_id(now, out)
        return out

    def sync(self, command: SyncGroup, token: Token, now: Now) -> Decision:
        if not command.group_id:
            return replied(token, SyncReply(error_code=ErrorCode.invalid_group_id))
        consumer = self._consumer(command.group_id)
        if consumer is not None:
            return self.consumers.classic_sync(consumer, command, token, now)
        group = self.groups.get(command.group_id)
        if group is None:
            return replied(token, SyncReply(error_code=ErrorCode.unknown_member_id))
        out = Decision()
        decide_sync(group, command, token, now, out)
        return out

    def heartbeat(self, command: Heartbeat, token: Token, now: Now) -> Decision:
        if not command.group_id:
            return replied(token, HeartbeatReply(error_code=ErrorCode.invalid_group_id))
        consumer = self._consumer(command.group_id)
        if consumer is not None:
            return self.consumers.classic_heartbeat(consumer, command, token, now)
        group = self.groups.get(command.group_id)
        code = ErrorCode.unknown_member_id if group is None else decide_heartbeat(group, command, now)
        return replied(token, HeartbeatReply(error_code=code))

    def leave(self, command: LeaveGroup, token: Token, now: Now) -> Decision:
        if not command.group_id:
            return replied(token, LeaveReply(error_code=ErrorCode.invalid_group_id))
        consumer = self._consumer(command.group_id)
        if consumer is not None:
            out, downgraded = self.consumers.classic_leave(consumer, command, token, now)
            self._adopt(downgraded)
            return out
        group = self.groups.get(command.group_id)
        if group is None:
            unknown = tuple(LeftMember(*member, ErrorCode.unknown_member_id) for member in command.members)
            return replied(token, LeaveReply(members=unknown))
        out = Decision()
        decide_leave(group, command, token, now, out)
        self._drop_if_vacant(group)
        return out

    def consumer_heartbeat(self, command: ConsumerHeartbeat, token: Token, now: Now) -> Decision:
        out, downgraded = self.consumers.heartbeat(command, self.groups.get(command.group_id), token, now)
        self._adopt(downgraded)
        return out

    def _consumer(self, group_id: str) -> ConsumerGroup | None:
        """The group, if it is one of the new protocol and not just about to become a classic one."""
        return None if group_id in self.groups else self.consumers.get(group_id)

    def _adopt(self, downgraded: ClassicGroup | None) -> None:
        if downgraded is not None:
            self.groups[downgraded.group_id] = downgraded

    # Offsets ------------------------------------------------------------------------------------------------------

    def commit_offsets(self, command: CommitOffsets, token: Token, now: Now) -> Decision:
        out = Decision()
        consumer = self._consumer(command.group_id)
        if consumer is not None:
            code = check_consumer_commit(consumer, command)
        else:
            code = check_and_touch(self.groups.get(command.group_id), command, now)
        decide_commit(code, command, self.config, token, now, out)
        return out

    def commit_txn_offsets(self, command: CommitTxnOffsets, token: Token, now: Now) -> Decision:
        out = Decision()
        group = self._consumer(command.group_id) or self.groups.get(command.group_id)
        decide_txn_commit(check_txn_commit(group, command), command, self.config, token, now, out)
        pending = [record for record in out.records if isinstance(record, OffsetCommitted)]
        if not self.pending_budget.has_room(pending):
            # It is tried again until other transactions have ended, or this one's time is over.
            return Decision(replies_now=out.failed(ErrorCode.coordinator_not_available))
        return out

    def fetch_offsets(self, command: FetchOffsets, token: Token) -> Decision:
        consumer = self._consumer(command.group_id)
        code = ErrorCode.none if consumer is None else check_consumer_fetch(consumer, command)
        if code is not ErrorCode.none:
            return replied(token, FetchReply(error_code=code))
        return Decision(replies_on_commit=[Reply(token, fetch_offsets(self.offsets, self.pending_offsets, command))])

    def delete_offsets(self, command: DeleteOffsets, token: Token) -> Decision:
        out = Decision()
        group = self._consumer(command.group_id) or self.groups.get(command.group_id)
        decide_delete(group, self._has_offset, command, token, out)
        return out

    def _has_offset(self, group_id: str, topic: str, partition: int) -> bool:
        is_pending = self.pending_offsets.is_pending(group_id, topic, partition)
        return is_pending or self.offsets.get(group_id, topic, partition) is not None

    def expire_offsets(self, now: Now) -> Decision:
        """To be called every offsets.retention.check.interval.ms. Groups that are left with nothing go, too."""
        out = Decision()
        last, self._last_expiry = self._last_expiry, now
        if last is not None and now.wall_ms - last.wall_ms > now.timer_ms - last.timer_ms + CLOCK_JUMP_MS:
            return out  # The clock was set forward. If it stays there, the next pass believes it.
        for group in self.groups.values():
            offsets = self.offsets.of_group(group.group_id)
            tombstones = self._stable(expired_offsets(group, offsets, now.wall_ms))
            out.records += tombstones
            is_needed = group.state is not GroupState.EMPTY or group.pending_ids
            is_open = group.group_id in self.pending_offsets
            if not is_needed and not is_open and len(tombstones) == sum(map(len, offsets.values())):
                out.records.append(GroupDeleted(group_id=group.group_id))
        for consumer in self.consumers.groups.values():
            offsets = self.offsets.of_group(consumer.group_id)
            expired = expired_consumer_offsets(consumer, offsets, now.wall_ms, self.config.offsets_retention_ms)
            tombstones = self._stable(expired)
            out.records += tombstones
            is_open = consumer.group_id in self.pending_offsets
            if not consumer.members and not is_open and len(tombstones) == sum(map(len, offsets.values())):
                self.consumers.delete(consumer, out)
        return out

    def _stable(self, tombstones: list[OffsetDeleted]) -> list[OffsetDeleted]:
        """Those of partitions that no open transaction is about; the others' group is at work."""
        is_pending = self.pending_offsets.is_pending
        return [one for one in tombstones if not is_pending(one.group_id, one.topic, one.partition)]

    def on_topics_changed(self, topics: Topics, names: Collection[str]) -> None:
        """`names` were made, deleted or got partitions; consumer groups are assigned anew with their next heartbeat."""
        self.consumers.on_topics_changed(topics, names)

    def on_topics_deleted(self, names: Collection[str]) -> Decision:
        committed = self.offsets.topic_tombstones(names)
        # Each once, in their order.
        return Decision(records=list(dict.fromkeys([*committed, *self.pending_offsets.of_topics(names)])))

    # Groups -------------------------------------------------------------------------------------------------------

    def delete_groups(self, command: DeleteGroups, token: Token) -> Decision:
        out = Decision()
        codes = {group_id: self._delete_group(group_id, out) for group_id in dict.fromkeys(command.group_ids)}
        reply = DeleteGroupsReply(groups=tuple(DeletedGroup(*item) for item in codes.items()))
        out.replies_on_commit.append(Reply(token, reply))
        return out

    def _delete_group(self, group_id: str, out: Decision) -> ErrorCode:
        consumer = self._consumer(group_id)
        if consumer is not None:
            if consumer.members:
                return ErrorCode.non_empty_group
            out.records += self._offset_tombstones(group_id)
            self.consumers.delete(consumer, out)
            return ErrorCode.none
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        if group.state is not GroupState.EMPTY:
            return ErrorCode.non_empty_group
        out.records += self._offset_tombstones(group_id)
        out.records.append(GroupDeleted(group_id=group_id))
        return ErrorCode.none

    def _offset_tombstones(self, group_id: str) -> list[OffsetDeleted]:
        """What removes all offsets of the group, those in open transactions too."""
        return list(dict.fromkeys([*self.offsets.tombstones(group_id), *self.pending_offsets.of_group(group_id)]))

    def describe(self, group_id: str) -> views.GroupView | None:
        """The group, or None: then DescribeGroups says Dead, from v6 on with GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        return None if group is None else views.describe(group)

    def list_groups(self) -> list[views.ListedGroup]:
        classic = [views.listed(group) for group in self.groups.values()]
        consumer = [
            views.listed_consumer(group)
            for group_id, group in self.consumers.groups.items()
            if group_id not in self.groups
        ]
        return classic + consumer

    def describe_consumer(self, group_id: str) -> consumer_views.ConsumerGroupView | None:
        """The group, or None when it is not there, or a classic one."""
        group = self._consumer(group_id)
        return None if group is None else consumer_views.describe(group, self.config.consumer_assignors[0])

    # Time ---------------------------------------------------------------------------------------------------------

    def on_tick(self, now: Now) -> Decision:
        """Everything that is due."""
        out = Decision()
        drafts: dict[str, Draft | None] = {}
        while (key := self.deadlines.pop_due(now.timer_ms)) is not None:
            if key.kind in (Kind.CONSUMER_SESSION, Kind.CONSUMER_REBALANCE):
                self._adopt(self.consumers.on_deadline(key, drafts, now, out))
            else:
                self._on_deadline(key, now, out)
        return out

    def _on_deadline(self, key: Key, now: Now, out: Decision) -> None:
        group = self.groups[key.group_id]
        if key.kind is Kind.SESSION:
            on_session_deadline(group, key.member_id, now, out)
        elif key.kind is Kind.JOIN:
            on_join_deadline(group, now, out)
        else:
            on_sync_deadline(group, now, out)
        self._drop_if_vacant(group)

    # The log ------------------------------------------------------------------------------------------------------

    def apply(self, record: GroupRecord) -> None:
        """The record is in the log. In the order of the log, exactly once each."""
        match record:
            case OffsetCommitted():
                self.pending_offsets.on_committed(record)
                self.offsets.apply(record)
                if self.consumers.get(record.group_id) is None:
                    self._group(record.group_id)  # A group that only commits is a group.
            case OffsetDeleted():
                self.pending_offsets.on_deleted(record)
                self.offsets.apply(record)
            case GroupMetadata():
                self.consumers.drop(record.group_id)
                self._group(record.group_id).on_stored(record)
            case GroupDeleted():
                self._remove(record.group_id)
            case _:
                self._apply_consumer(record)

    def apply_transactional(self, record: GroupRecord, producer_id: int) -> None:
        """The record is in the log, and counts if the producer's transaction is committed."""
        if not isinstance(record, OffsetCommitted):
            return  # Nobody writes others there.
        self.pending_offsets.add(record, producer_id)
        if self.consumers.get(record.group_id) is None:
            self._group(record.group_id)

    def apply_end(self, producer_id: int, *, is_commit: bool) -> None:
        """The log has the end of the producer's transaction."""
        committed, group_ids = self.pending_offsets.end(producer_id, is_commit=is_commit)
        for record in committed:
            self.offsets.apply(record)
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                self._drop_if_vacant(group)

    def load(self, records: Iterable[GroupRecord], now: Now) -> Decision:
        for record in records:
            self.apply(record)
        return self.on_loaded(now)

    def on_loaded(self, now: Now) -> Decision:
        """All records were applied: groups with members are stable, and wait a session for them to be heard of."""
        out = Decision()
        self.consumers.on_loaded(now)
        for group in self.groups.values():
            group.restore(now)
            if len(group.members) > self.config.max_size:
                prepare_rebalance(group, now, out)  # The limit was lowered: those who rejoin first stay.
        return out

    def on_append_failed(self, decision: Decision, code: ErrorCode, now: Now) -> Decision:
        """Nothing of `decision` was appended, nor applied. What comes back takes its place: all its replies are in it.

        A generation that could not be stored never was; its members try again. (A group that became empty may have
        its last members again after a crash. They do not show up, and time takes them out.)
        """
        out = Decision(replies_now=decision.replies_now + decision.failed(code))
        self._stay_consumer(decision.records, code, now, out)
        for record in decision.records:
            group = self.groups.get(record.group_id)
            if not isinstance(record, GroupMetadata) or group is None:
                continue
            if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
                prepare_rebalance(group, now, out)
        return out

    def unload(self, code: ErrorCode = ErrorCode.not_coordinator) -> Decision:
        """Another broker coordinates these groups now. Replies that wait for a commit are the shell's to fail."""
        out = Decision()
        self.consumers.unload()
        self.pending_offsets.close()
        for group in self.groups.values():
            self._dismiss(group, code, out)
        return out

    def _dismiss(self, group: ClassicGroup, code: ErrorCode, out: Decision) -> None:
        for member in group.members.values():
            group.answer_join(member, JoinReply(error_code=code, member_id=member.member_id), out)
            group.answer_sync(member, SyncReply(error_code=code), out)
            self.budget.release(member)
        group.cancel_deadlines()
        group.become(GroupState.DEAD, group.state_since_ms)

    def _apply_consumer(self, record: ConsumerRecord) -> None:
        is_tombstone = isinstance(record, ConsumerGroupTombstone)
        classic = self.groups.get(record.group_id)
        if classic is not None and not classic.members and not is_tombstone:
            # It only commits, or was empty: what it had in the log is gone. One with members is about to replace us.
            self.groups.pop(record.group_id).cancel_deadlines()
        self.consumers.apply(record)
        is_gone = is_tombstone and self.consumers.get(record.group_id) is None
        if is_gone and self._has_offsets(record.group_id):
            self._group(record.group_id)  # Its offsets are still there, so it is one that only commits.

    def _stay_consumer(self, records: Collection[GroupRecord], code: ErrorCode, now: Now, out: Decision) -> None:
        """Groups that were to become classic ones did not; who waits in those is told to try again."""
        failed = [record for record in records if isinstance(record, ConsumerRecord)]
        self.consumers.on_append_failed(failed, now)
        for group_id in {record.group_id for record in failed} & self.groups.keys() & self.consumers.groups.keys():
            self._dismiss(self.groups.pop(group_id), code, out)

    # Books --------------------------------------------------------------------------------------------------------

    def _new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            config=self.config,
            budget=self.budget,
            deadlines=self.deadlines,
            new_unique_id=self._new_unique_id,
        )

    def _group(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = self._new_group(group_id)
        return group

    def _remove(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.cancel_deadlines()
            for member in group.members.values():
                self.budget.release(member)  # It goes on as a member of a consumer group.
        if self._has_offsets(group_id):
            self._group(group_id)  # Its offsets are still there, so it is one that only commits.

    def _has_offsets(self, group_id: str) -> bool:
        return group_id in self.offsets or group_id in self.pending_offsets

    def _drop_if_vacant(self, group: ClassicGroup) -> None:
        """Forget a group of which nothing came: names that a client makes up must not stay."""
        if group.is_vacant and not self._has_offsets(group.group_id):
            del self.groups[group.group_id]

    def _forget_oldest_id(self, now: Now, out: Decision) -> None:
        group_id, member_id = self._given_ids.popleft()
        group = self.groups.get(group_id)
        if group is not None and member_id in group.pending_ids:
            group.remove_pending(member_id)
            maybe_complete_join(group, now, out)
            self._drop_if_vacant(group)
