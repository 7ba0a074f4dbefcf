"""The world of tests/coordinator/group/support.py with topics, and with members of the new protocol in it."""

from collections.abc import Collection
from itertools import count
from typing import Any
from uuid import UUID

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.consumer.assignment import Assignment
from penstock.coordinator.group.consumer.commands import ConsumerHeartbeat
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.records import TopicMetadata
from penstock.coordinator.group.consumer.replies import ConsumerHeartbeatReply
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.group_shard import GroupShard

from ..support import GROUP, REBALANCE_MS, World

SESSION_MS = 45_000
T, U = UUID(int=1), UUID(int=2)


class FakeTopics:
    def __init__(self, topics: dict[str, TopicMetadata]) -> None:
        self.topics = topics
        self._names = {topic.topic_id: topic.name for topic in topics.values()}

    def find(self, name: str) -> TopicMetadata | None:
        return self.topics.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def names(self) -> Collection[str]:
        return self.topics.keys()


class ConsumerWorld(World):
    """`t` has six partitions, `u` has two."""

    def __init__(self, config: GroupConfig | None = None, auto_commit: bool = True) -> None:
        self.topic_numbers = count(100)  # Ids of topics that are made later. None comes twice.
        self.topics = FakeTopics({"t": TopicMetadata(T, "t", 6), "u": TopicMetadata(U, "u", 2)})
        super().__init__(config, auto_commit)

    def new_shard(self) -> GroupShard:
        shard = super().new_shard()
        shard.on_topics_changed(self.topics, ())
        return shard

    def set_topic(self, name: str, partitions: int, topic_id: UUID | None = None) -> None:
        """Make it, or give it partitions; none: it is deleted."""
        topics = dict(self.topics.topics)
        old = topics.pop(name, None)
        if partitions:
            found = topic_id or (old.topic_id if old else UUID(int=next(self.topic_numbers)))
            topics[name] = TopicMetadata(found, name, partitions)
        self.topics = FakeTopics(topics)
        self.shard.on_topics_changed(self.topics, [name])

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.consumers.groups[GROUP]

    def send_beat(self, member_id: str, epoch: int, *, fail: ErrorCode | None = None, **fields: Any) -> int:
        token = self.new_token()
        values: dict[str, Any] = {"group_id": GROUP, "client_id": "c", "client_host": "/h", **fields}
        command = ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **values)
        self.run(self.shard.consumer_heartbeat(command, token, self.now), fail)
        return token

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerHeartbeatReply:
        reply = self.replies[self.send_beat(member_id, epoch, **fields)]
        assert isinstance(reply, ConsumerHeartbeatReply)
        return reply

    def send_enter(self, member_id: str, *topics: str, fail: ErrorCode | None = None, **fields: Any) -> int:
        values: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "topic_names": topics or ("t",),
            "owned": {},
            **fields,
        }
        return self.send_beat(member_id, 0, fail=fail, **values)

    def enter_new(self, member_id: str, *topics: str, **fields: Any) -> ConsumerHeartbeatReply:
        """A first heartbeat."""
        reply = self.replies[self.send_enter(member_id, *topics, **fields)]
        assert isinstance(reply, ConsumerHeartbeatReply)
        return reply

    def settle(self, *member_ids: str) -> None:
        """Everyone heartbeats, and does what it is told, until nothing changes any more."""
        for _ in range(20):
            before = len(self.log)
            for member_id in member_ids or list(self.group.members):
                current = self.group.members[member_id].current
                self.beat(member_id, current.epoch, owned=current.assigned)
            if len(self.log) == before:
                return
        raise AssertionError("it does not settle")

    def assigned(self, member_id: str) -> Assignment:
        return self.group.members[member_id].current.assigned

    def numbers(self, member_id: str, topic_id: UUID = T) -> set[int]:
        return set(self.assigned(member_id).get(topic_id, ()))

    def consumer_state(self) -> str | None:
        view = self.shard.describe_consumer(GROUP)
        return None if view is None else view.state
