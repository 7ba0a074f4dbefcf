"""A coordinator without a broker: a shard, a log in a list, a clock that is turned by hand, and the replies so far."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from penstock.base.errors import ErrorCode
from penstock.base.types import Offset
from penstock.coordinator.group.commands import (
    CommitOffsets,
    DeleteGroups,
    DeleteOffsets,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    PartitionCommit,
    Protocol,
    SyncGroup,
    TopicCommit,
    TopicPartitions,
)
from penstock.coordinator.group.decision import Decision, Now, Reply
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.group.records import GroupRecord, decode, encode
from penstock.coordinator.group.replies import JoinReply, SyncReply

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
WALL_START_MS = 1_700_000_000_000


def subscription(*topics: str, owned: bytes = b"") -> bytes:
    """What a consumer sends, version 0 and something behind it that the coordinator does not read."""
    names = b"".join(len(name).to_bytes(2) + name.encode() for name in topics)
    return b"\0\0" + len(topics).to_bytes(4) + names + b"\xff\xff\xff\xff" + owned


RANGE = (Protocol("range", subscription("t")),)


class World:
    """With `auto_commit` the high watermark follows every append; else `commit` moves it."""

    def __init__(self, config: GroupConfig | None = None, auto_commit: bool = True) -> None:
        self.config = config or GroupConfig()
        self.auto_commit = auto_commit
        self.timer_ms = 1_000_000
        self.wall_ms = WALL_START_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.committed = 0  # First index of the log that is not committed.
        self.waiting: list[tuple[int, Reply]] = []  # (end of the log when it was decided, reply)
        self.replies: dict[int, Any] = {}
        self.replied_ms: dict[int, int] = {}
        self.records: list[GroupRecord] = []  # Of the last decision.
        self.last_token = 0
        self.ids = count(1)
        self.shard = self.new_shard()

    def new_shard(self) -> GroupShard:
        return GroupShard(new_unique_id=lambda: f"id{next(self.ids)}", config=self.config)

    @property
    def now(self) -> Now:
        return Now(self.timer_ms, self.wall_ms)

    # What a runtime does ------------------------------------------------------------------------------------------

    def run(self, decision: Decision, fail: ErrorCode | None = None) -> None:
        self.records = decision.records
        if fail is not None:
            decision = self.shard.on_append_failed(decision, fail, self.now)
        for record in decision.records:
            key, value = encode(record)
            self.log.append((key, value))
            decoded = decode(key, value)
            assert decoded == record
            self.shard.apply(record)
        for reply in decision.replies_now:
            self.send(reply)
        self.waiting += [(len(self.log), reply) for reply in decision.replies_on_commit]
        self.commit(None if self.auto_commit else self.committed)

    def commit(self, end: int | None = None) -> None:
        self.committed = len(self.log) if end is None else end
        ready = [reply for position, reply in self.waiting if position <= self.committed]
        self.waiting = [(position, reply) for position, reply in self.waiting if position > self.committed]
        for reply in ready:
            self.send(reply)

    def send(self, reply: Reply) -> None:
        assert reply.token not in self.replies, f"answered twice: {reply}"
        self.replies[reply.token] = reply.response
        self.replied_ms[reply.token] = self.timer_ms

    def advance(self, delay_ms: int) -> None:
        """Let time pass; everything happens at its deadline."""
        end_ms = self.timer_ms + delay_ms
        while (due_ms := self.shard.next_deadline_ms) is not None and due_ms <= end_ms:
            self._turn_to(max(due_ms, self.timer_ms))
            self.run(self.shard.on_tick(self.now))
        self._turn_to(end_ms)

    def advance_until_answered(self, token: int) -> None:
        while token not in self.replies:
            due_ms = self.shard.next_deadline_ms
            assert due_ms is not None, "it waits for ever"
            self.advance(due_ms - self.timer_ms)

    def _turn_to(self, timer_ms: int) -> None:
        self.wall_ms += timer_ms - self.timer_ms
        self.timer_ms = timer_ms

    def restart(self) -> None:
        """Another broker takes over with what is in the log."""
        self.shard = self.new_shard()
        self.waiting.clear()
        self.run(self.shard.load([record for record in map(decode_pair, self.log) if record], self.now))

    def new_token(self) -> int:
        self.last_token += 1
        return self.last_token

    # What clients ask ---------------------------------------------------------------------------------------------

    def send_join(self, member_id: str = "", *, fail: ErrorCode | None = None, **fields: Any) -> int:
        token = self.new_token()
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "version": 9,
        }
        self.run(self.shard.join(JoinGroup(**{**values, **fields}), token, self.now), fail)
        return token

    def join(self, member_id: str = "", **fields: Any) -> JoinReply:
        """The reply to a join that is not parked."""
        reply = self.replies[self.send_join(member_id, **fields)]
        assert isinstance(reply, JoinReply)
        return reply

    def enter(self, **fields: Any) -> tuple[str, int]:
        """A new dynamic member: asks for its id, joins with it, is parked. Gives (member id, token)."""
        reply = self.join(**fields)
        assert reply.error_code is ErrorCode.member_id_required
        return reply.member_id, self.send_join(reply.member_id, **fields)

    def send_sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        fail: ErrorCode | None = None,
        **fields: Any,
    ) -> int:
        token = self.new_token()
        values = {"group_id": GROUP, **fields}
        command = SyncGroup(member_id=member_id, generation_id=generation_id, assignments=assignments or {}, **values)
        self.run(self.shard.sync(command, token, self.now), fail)
        return token

    def sync(self, *args: Any, **fields: Any) -> SyncReply:
        reply = self.replies[self.send_sync(*args, **fields)]
        assert isinstance(reply, SyncReply)
        return reply

    def heartbeat(self, member_id: str, generation_id: int, **fields: Any) -> ErrorCode:
        token = self.new_token()
        values = {"group_id": GROUP, **fields}
        command = Heartbeat(member_id=member_id, generation_id=generation_id, **values)
        self.run(self.shard.heartbeat(command, token, self.now))
        code: ErrorCode = self.replies[token].error_code
        return code

    def send_leave(self, *members: LeavingMember | str, group_id: str = GROUP, fail: ErrorCode | None = None) -> int:
        token = self.new_token()
        leaving = tuple(LeavingMember(member) if isinstance(member, str) else member for member in members)
        self.run(self.shard.leave(LeaveGroup(group_id=group_id, members=leaving), token, self.now), fail)
        return token

    def leave(self, *members: LeavingMember | str, group_id: str = GROUP) -> list[ErrorCode]:
        reply = self.replies[self.send_leave(*members, group_id=group_id)]
        return [reply.error_code] if not reply.members else [member.error_code for member in reply.members]

    def send_commit(self, offset: int = 1, *, fail: ErrorCode | None = None, **fields: Any) -> int:
        token = self.new_token()
        partitions = (PartitionCommit(fields.pop("partition", 0), Offset(offset), metadata=fields.pop("metadata", "")),)
        topics = (TopicCommit(fields.pop("topic", "t"), partitions),)
        values = {"group_id": GROUP, "topics": topics, "version": 8, **fields}
        self.run(self.shard.commit_offsets(CommitOffsets(**values), token, self.now), fail)
        return token

    def commit_offset(self, offset: int = 1, **fields: Any) -> ErrorCode:
        code: ErrorCode = self.replies[self.send_commit(offset, **fields)].topics[0].partitions[0].error_code
        return code

    def offset(self, topic: str = "t", partition: int = 0, group_id: str = GROUP, **fields: Any) -> int:
        token = self.new_token()
        topics = (TopicPartitions(topic, (partition,), **fields),)
        self.run(self.shard.fetch_offsets(FetchOffsets(group_id=group_id, topics=topics), token))
        offset: int = self.replies[token].topics[0].partitions[0].offset
        return offset

    def delete_offsets(self, topic: str = "t", partition: int = 0) -> ErrorCode:
        token = self.new_token()
        command = DeleteOffsets(group_id=GROUP, topics=(TopicPartitions(topic, (partition,)),))
        self.run(self.shard.delete_offsets(command, token))
        reply = self.replies[token]
        code: ErrorCode = reply.error_code if not reply.topics else reply.topics[0].partitions[0].error_code
        return code

    def delete_group(self, group_id: str = GROUP) -> ErrorCode:
        token = self.new_token()
        self.run(self.shard.delete_groups(DeleteGroups(group_ids=(group_id,)), token))
        code: ErrorCode = self.replies[token].groups[0].error_code
        return code

    def state(self, group_id: str = GROUP) -> str | None:
        view = self.shard.describe(group_id)
        return None if view is None else view.state

    # Groups that are somewhere ------------------------------------------------------------------------------------

    def joined(self, number: int = 2, **fields: Any) -> tuple[list[str], int]:
        """A group that waits for its assignment. Gives (member ids, the leader first; generation)."""
        entered = [self.enter(**fields) for _ in range(number)]
        self.advance_until_answered(entered[0][1])
        return [member_id for member_id, _ in entered], self.replies[entered[0][1]].generation_id

    def stable(self, number: int = 2, **fields: Any) -> tuple[list[str], int]:
        """A group in which everyone has an assignment: its own member id."""
        members, generation = self.joined(number, **fields)
        self.sync_all(members, generation)
        return members, generation

    def sync_all(self, members: Sequence[str], generation: int) -> None:
        assignments = {member_id: member_id.encode() for member_id in members}
        self.sync(members[0], generation, assignments)
        for member_id in members[1:]:
            self.sync(member_id, generation)
        assert self.state() == "Stable"

    def stable_static(self, *instance_ids: str, version: int = 9) -> tuple[list[str], int]:
        tokens = [self.send_join(instance_id=instance_id, version=version) for instance_id in instance_ids]
        self.advance_until_answered(tokens[0])
        members = [self.replies[token].member_id for token in tokens]
        generation = self.replies[tokens[0]].generation_id
        self.sync_all(members, generation)
        return members, generation


def decode_pair(pair: tuple[bytes, bytes | None]) -> GroupRecord | None:
    return decode(*pair)
