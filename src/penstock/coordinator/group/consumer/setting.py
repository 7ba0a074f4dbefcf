"""What decisions about consumer groups need besides the group: one for a shard, passed to whoever decides."""

from collections.abc import Callable

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.consumer.member import ConsumerMember, held_bytes
from penstock.coordinator.group.consumer.records import ConsumerGroupMemberMetadata
from penstock.coordinator.group.consumer.topics import NoTopics, Topics
from penstock.coordinator.group.deadlines import Deadlines, Key, Kind
from penstock.coordinator.group.decision import Now
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.member_budget import MemberBudget


class Setting:
    def __init__(
        self, *, config: GroupConfig, deadlines: Deadlines, budget: MemberBudget, new_unique_id: Callable[[], str]
    ) -> None:
        self.config = config
        self.budget = budget
        self.deadlines = deadlines
        self.new_unique_id = new_unique_id
        self.topics: Topics = NoTopics()

    def check_room(self, old: ConsumerMember | None, new: ConsumerGroupMemberMetadata) -> None:
        """Refused when the members of all groups together would take more memory than they may."""
        if not self.budget.has_room(held_bytes(new) - (0 if old is None else old.held_bytes)):
            raise Refused(ErrorCode.group_max_size_reached, "The members of all groups take all the memory they may")

    def touch(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """The member lives: its session starts again."""
        classic = member.metadata.classic
        timeout_ms = self.config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self.deadlines.set(Key(Kind.CONSUMER_SESSION, group_id, member.member_id), now.timer_ms + timeout_ms)

    def await_rebalance(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """The member has to give up partitions, or to rejoin: if it does not, its time ends."""
        until_ms = now.timer_ms + max(0, member.metadata.rebalance_timeout_ms)
        self.deadlines.set(Key(Kind.CONSUMER_REBALANCE, group_id, member.member_id), until_ms)

    def is_rebalance_awaited(self, group_id: str, member_id: str) -> bool:
        return Key(Kind.CONSUMER_REBALANCE, group_id, member_id) in self.deadlines

    def end_rebalance(self, group_id: str, member_id: str) -> None:
        self.deadlines.cancel(Key(Kind.CONSUMER_REBALANCE, group_id, member_id))

    def forget(self, group_id: str, member_id: str) -> None:
        self.deadlines.cancel(Key(Kind.CONSUMER_SESSION, group_id, member_id))
        self.end_rebalance(group_id, member_id)
