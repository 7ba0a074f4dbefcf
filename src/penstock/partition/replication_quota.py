"""Throttled replication: how fast replicas that are moved, or have fallen behind, may catch up (KIP-73).

A topic names the replicas that are throttled, separately for leaders, which send, and followers, which copy. A broker
has a rate for each of the two, which all its throttled partitions share:

    copied while catching up  <=  rate * seconds  +  for each request under way: a second's worth and a batch

Who is in sync is never throttled, whatever the lists say: producers wait for it. Kafka throttles it too while it lags,
and counts its bytes. Pure: time is an argument.
"""

from collections.abc import Iterable

from penstock.base.config_key import INT_MAX, LONG_MAX
from penstock.base.token_bucket import TokenBucket
from penstock.base.topic_config import ALL_REPLICAS
from penstock.base.types import NodeId

NO_LIMIT = LONG_MAX  # Kafka's default.
BURST_S = 1.0  # Twice as long as a follower's fetch waits at a leader by default, so that the rate can be used up.


class ReplicationQuota:
    """Of one broker, in one direction."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._rate = NO_LIMIT
        self._bucket = TokenBucket()
        self._throttled: dict[str, frozenset[int] | None] = {}  # Partitions by topic; None: all. Others: none.

    @property
    def is_active(self) -> bool:
        """Whether anything is throttled at all."""
        return self._rate != NO_LIMIT and bool(self._throttled)

    def set_rate(self, rate: int) -> None:
        self._rate = rate

    def set_topic(self, topic: str, replicas: Iterable[str]) -> None:
        """Throttle those of a topic's replicas that are ours: `*`, or each as partition:broker."""
        listed = tuple(replicas)
        if ALL_REPLICAS in listed:
            self._throttled[topic] = None
            return
        pairs = (item.split(":") for item in listed)
        partitions = frozenset(int(partition) for partition, broker in pairs if int(broker) == self._node_id)
        if partitions:
            self._throttled[topic] = partitions
        else:
            self._throttled.pop(topic, None)

    def is_throttled(self, topic: str, partition: int) -> bool:
        if self._rate == NO_LIMIT or topic not in self._throttled:
            return False
        partitions = self._throttled[topic]
        return partitions is None or partition in partitions

    def room_bytes(self, now_s: float) -> int:
        """How much may be sent or asked for at once; 0: nothing, not even a single batch."""
        if self._rate == NO_LIMIT:
            return INT_MAX
        room = self._rate * BURST_S - self._bucket.level(now_s, limit=self._rate)
        return 0 if room <= 0 else min(max(1, int(room)), INT_MAX)

    def take(self, count: int, now_s: float) -> None:
        """Note what was sent or copied."""
        if count and self._rate != NO_LIMIT:
            self._bucket.take(count, now_s, limit=self._rate, burst_s=BURST_S)

    def wait_s(self, now_s: float) -> float:
        """How long to wait until there is room again."""
        if self._rate == NO_LIMIT:
            return 0.0
        return self._bucket.wait_s(now_s, limit=self._rate, burst_s=BURST_S)


class ReplicationQuotas:
    """Both directions of one broker."""

    def __init__(self, node_id: NodeId) -> None:
        self.leader = ReplicationQuota(node_id)
        self.follower = ReplicationQuota(node_id)

    def set_rates(self, *, leader: int, follower: int) -> None:
        self.leader.set_rate(leader)
        self.follower.set_rate(follower)

    def set_topic(self, topic: str, *, leader: Iterable[str] = (), follower: Iterable[str] = ()) -> None:
        """The throttled replicas of a topic; none of one that is gone."""
        self.leader.set_topic(topic, leader)
        self.follower.set_topic(topic, follower)
