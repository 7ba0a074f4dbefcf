"""The settings of the group coordinator, with Kafka's defaults and a reason for each bound that is ours."""

from enum import Enum
from typing import NamedTuple

INT_MAX = 2**31 - 1


class MigrationPolicy(Enum):
    """Which groups with members may change their protocol."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"  # From classic to consumer.
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def can_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def can_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class GroupConfig(NamedTuple):
    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms: below it, a pause of the collector is a death.
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms: how long a dead member may hold partitions.
    max_size: int = INT_MAX  # group.max.size
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms: members of a new group start together.
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    offset_metadata_bytes_max: int = 4_096  # offset.metadata.max.bytes

    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms: the broker's, not the client's.
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_max_size: int = INT_MAX  # group.consumer.max.size
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors, the default first.
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL  # group.consumer.migration.policy

    # A join that is parked holds no session, and its client may have gone: after this it is answered and forgotten.
    new_member_join_timeout_ms: int = 300_000
    # Names and metadata of all protocols of one member. A generation is one record, and max.message.bytes is 1 MiB.
    member_metadata_bytes_max: int = 1 << 20
    # Of the members of all groups of this broker together: 32,000 that say little, or 32 that say as much as they may.
    # With what the allocator adds it is less than 64 MiB, which is what hostile clients may cost us.
    members_bytes_max: int = 32 << 20
    # Of the offsets in open transactions, of all groups of this broker: 25,000 of them. A transaction of Kafka Streams
    # has one for each input partition of a thread.
    pending_offsets_bytes_max: int = 32 << 20
    protocols_max: int = 100  # Clients name one to three. Every name is counted at every join.
    # Member ids that were given out (MEMBER_ID_REQUIRED) and not used yet, in all groups of one partition; the oldest
    # go first. A client comes back within a round trip; 10,000 of about 300 bytes are 3 MB.
    pending_ids_max: int = 10_000


DEFAULT_GROUP_CONFIG = GroupConfig()
