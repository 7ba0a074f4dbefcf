"""A broker's settings, read once from properties under Kafka's names.

Nothing is ignored in silence: a key is taken, refused with a reason, or answered with one warning line.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from penstock.base.config_ignored import why_ignored, why_refused
from penstock.base.config_key import (
    INT_MAX,
    LONG_MAX,
    ConfigKey,
    InvalidConfig,
    Rule,
    Synonym,
    boolean,
    by_name,
    integer,
    list_of,
    long,
    one_of,
    render,
    text,
)
from penstock.base.listener import Listener, parse_listener
from penstock.base.logging import get_logger
from penstock.base.topic_config import (
    BROKER_SYNONYMS,
    DEFAULT_TOPIC_CONFIG,
    TOPIC_CONFIGS,
    TopicConfig,
    parse_topic_config,
    topic_default_overrides,
)
from penstock.base.types import NodeId

log = get_logger(__name__)

DEFAULT_NODE_ID = NodeId(1)
DEFAULT_LISTENER = "PLAINTEXT://localhost:9092"
DEFAULT_DATA_DIR = "penstock-data"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class BrokerConfig(NamedTuple):
    node_id: NodeId = DEFAULT_NODE_ID
    host: str = "localhost"  # A broker without passwords is for this machine until its owner says otherwise.
    port: int = 9092  # 0: any free port.
    advertised_host: str | None = None  # None: as `host`.
    advertised_port: int | None = None  # None: the port that is really listened on.
    data_dir: str = DEFAULT_DATA_DIR
    cluster_id: str | None = None  # None: made at the first start.
    rack: str | None = None
    zookeeper_connect: str | None = None  # None: this broker is the whole cluster, with its metadata in its directory.
    zookeeper_session_timeout_ms: int = 18_000  # Kafka's: above it a dead broker's partitions get new leaders.
    zookeeper_connection_timeout_ms: int = 18_000

    auto_create_topics_enable: bool = True  # As Kafka: the first produce just works.
    delete_topic_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1  # One broker is a whole cluster here.

    replica_lag_time_max_ms: int = 30_000  # Kafka's: a follower that is behind for longer is not waited for.
    replica_fetch_wait_max_ms: int = 500  # Kafka's. A follower's empty fetch comes back after it, with the watermark.
    leader_replication_throttled_rate: int = LONG_MAX  # As Kafka: whoever moves partitions says how fast.
    follower_replication_throttled_rate: int = LONG_MAX
    replica_selector_class: str = LEADER_SELECTOR  # As Kafka: consumers read from leaders.
    controlled_shutdown_enable: bool = True  # A stop hands over the leaders first.
    auto_leader_rebalance_enable: bool = True  # Leaders go back to their preferred brokers by and by.
    leader_imbalance_check_interval_seconds: int = 300

    socket_request_max_bytes: int = 100 << 20  # Kafka's. A larger frame closes the connection before it is received.
    # The kernel takes twice as much: a whole reply of the 1 MiB that consumers ask for. Measured to be faster than both
    # Kafka's 100 KiB and a buffer that grows (docs/performance.md).
    socket_send_buffer_bytes: int = 768 << 10
    connections_max_idle_ms: int = 600_000  # Just above the nine minutes after which clients close idle connections.
    max_connections: int = 40_000  # With files, below the 64 K descriptors that systemd and Docker usually grant.
    max_connections_per_ip: int = INT_MAX  # Many clients can sit behind one address, so the owner decides.
    max_connection_creation_rate: int = INT_MAX  # As Kafka: after an outage everyone comes back at once.
    # Every client sends its first request at once, and whoever is closed before it has lost nothing.
    penstock_first_request_timeout_ms: int = 10_000
    penstock_journal_bytes: int = 0
    quota_window_num: int = 11  # Kafka's: ten windows and the current one,
    quota_window_size_seconds: int = 1  # so that ten seconds' worth of a quota can be used at once.
    queued_max_request_bytes: int = 512 << 20  # Requests being worked on: five of the largest fit.
    max_incremental_fetch_session_cache_slots: int = 1000
    fetch_max_bytes: int = 55 << 20  # Kafka's: 5 MiB more than a consumer asks for by default.
    max_decompressed_message_bytes: int = 100 << 20  # A 3 kB batch can claim gigabytes; this is where reading it ends.

    log_retention_check_interval_ms: int = 300_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000  # Bounds what recovery reads after a crash.
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1  # Compaction shares the cores with the event loop.
    log_cleaner_backoff_ms: int = 15_000

    group_min_session_timeout_ms: int = 6_000  # Below it a pause of the client's collector is a death.
    group_max_session_timeout_ms: int = 1_800_000  # How long a dead member may hold its partitions.
    group_max_size: int = INT_MAX  # The owner decides.
    group_initial_rebalance_delay_ms: int = 3_000  # Kafka's: members that start together get one rebalance.
    group_consumer_session_timeout_ms: int = 45_000  # Kafka's. Of members of the new protocol the broker decides.
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000  # Kafka's: nine may be lost before a session ends.
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = INT_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"  # As Kafka: clients move one by one, and back if they must.
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080  # A week after a group is empty, as Kafka.
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50  # Kafka's: it cannot be changed once groups exist.
    offsets_topic_replication_factor: int = 3  # As many as there are brokers, up to this.

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 5_000  # Half of Kafka's: readers wait for it.
    transaction_max_timeout_ms: int = 900_000  # How long one producer can hold up all readers of what is committed.
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_state_log_min_isr: int = 2  # Of a topic with more than one replica.
    transaction_state_log_num_partitions: int = 50  # Kafka's: it cannot be changed once transactional ids exist.
    transaction_state_log_replication_factor: int = 3  # As many as there are brokers, up to this.
    transaction_state_log_segment_bytes: int = 104_857_600
    transaction_two_phase_commit_enable: bool = True  # The exactly-once Spark sink is built on it (docs/adr/0004).
    transactional_id_expiration_ms: int = 604_800_000  # A week, as Kafka.

    producer_id_expiration_ms: int = 86_400_000  # A producer that retries after a day is not the same any more.
    producer_id_expiration_check_interval_ms: int = 600_000

    topic_defaults: TopicConfig = DEFAULT_TOPIC_CONFIG
    given: tuple[tuple[str, str], ...] = ()  # The properties as given; DescribeConfigs shows where a value is from.

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> Self:
        """The settings that `properties` ask for; InvalidConfig with all unknown keys, or the first bad value."""
        given = {name.strip(): value.strip() for name, value in properties.items()}
        known = _without_foreign_keys(given)
        config = cls(
            **_plain_values(known),
            **_addresses(known),
            data_dir=_data_dir(known),
            topic_defaults=parse_topic_config(topic_default_overrides(known), DEFAULT_TOPIC_CONFIG),
            given=tuple(known.items()),
        )
        if config.queued_max_request_bytes < config.socket_request_max_bytes:
            raise InvalidConfig(
                f"queued.max.request.bytes is {config.queued_max_request_bytes}, allowed is "
                f"socket.request.max.bytes ({config.socket_request_max_bytes}) or more"
            )
        config.check_consumer_groups()
        return config

    @property
    def quota_burst_s(self) -> float:
        """How many seconds' worth of a quota can be used at once."""
        return float(max(1, self.quota_window_num - 1) * self.quota_window_size_seconds)

    def check_consumer_groups(self) -> None:
        """InvalidConfig when the settings of consumer groups do not fit together."""
        for name in ("session.timeout.ms", "heartbeat.interval.ms"):
            low, value, high = (
                getattr(self, _attribute(f"group.consumer.{bound}{name}")) for bound in ("min.", "", "max.")
            )
            if not low <= value <= high:
                raise InvalidConfig(
                    f"group.consumer.{name} is {value}, allowed is group.consumer.min.{name} ({low}) to "
                    f"group.consumer.max.{name} ({high})"
                )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise InvalidConfig(
                f"group.consumer.heartbeat.interval.ms is {self.group_consumer_heartbeat_interval_ms}, allowed is "
                f"less than group.consumer.session.timeout.ms ({self.group_consumer_session_timeout_ms})"
            )
        if not self.group_consumer_assignors:
            raise InvalidConfig("group.consumer.assignors is empty, allowed is at least one")

    def with_overrides(self, overrides: Mapping[str, str]) -> Self:
        """These settings with `overrides` on top: Kafka's names, text, of keys that can change at run time."""
        topic_defaults = self.topic_defaults.with_overrides(topic_default_overrides(overrides))
        return self._replace(**_plain_values(overrides), topic_defaults=topic_defaults)

    def text(self, name: str) -> str | None:
        """The value of the broker setting `name` as Kafka shows it; None when there is none."""
        if name == "listeners":
            return str(Listener(self.host, self.port))
        if name == "advertised.listeners":
            port = self.port if self.advertised_port is None else self.advertised_port
            return str(Listener(self.advertised_host or self.host, port))
        if name in BROKER_SYNONYMS:
            key, factor = BROKER_SYNONYMS[name]
            shown = self.topic_defaults.text(key.name)
            return shown if factor == 1 or shown.startswith("-") else str(int(shown) // factor)
        value = getattr(self, _attribute(name))
        return None if value is None else render(value)


def _without_foreign_keys(given: Mapping[str, str]) -> dict[str, str]:
    """The keys that are ours. Others are warned of, refused, or unknown."""
    known: dict[str, str] = {}
    unknown: list[str] = []
    names = _NAMES | BROKER_SYNONYMS.keys()
    for name, value in given.items():
        if name in names:
            known[name] = value
        elif (reason := why_refused(name)) is not None:
            raise InvalidConfig(f"{name} cannot be set: {reason}")
        elif (reason := why_ignored(name)) is not None:
            log.warning("setting ignored", key=name, reason=reason)
        else:
            unknown.append(name)
    if unknown:
        raise InvalidConfig(f"unknown settings: {', '.join(ascii(name[:100])[1:-1] for name in sorted(unknown))}")
    return known


def _plain_values(known: Mapping[str, str]) -> dict[str, Any]:
    """The settings that are one field each, parsed by their rules."""
    values = {}
    for key in BROKER_CONFIGS.values():
        if key.name not in _SPECIAL:
            # The key's own name last: it wins over its synonyms.
            for name in (*(synonym.name for synonym in key.synonyms), key.name):
                if name in known:
                    values[_attribute(key.name)] = key.parse(known[name], given_as=name)
    return values


def _addresses(known: Mapping[str, str]) -> dict[str, Any]:
    listener = parse_listener("listeners", known.get("listeners", DEFAULT_LISTENER))
    if "advertised.listeners" in known:
        advertised = parse_listener("advertised.listeners", known["advertised.listeners"])
        if advertised.is_wildcard:
            raise InvalidConfig(
                f"advertised.listeners is {known['advertised.listeners']!r}, allowed is a host that clients can reach"
            )
        advertised_port = advertised.port or None
        return _address_fields(listener, advertised.host, advertised_port)
    if listener.is_wildcard:
        raise InvalidConfig(
            f"listeners is {known['listeners']!r}, all of this machine's addresses: "
            "advertised.listeners must then say which one clients are to use"
        )
    return _address_fields(listener, None, None)


def _address_fields(listener: Listener, host: str | None, port: int | None) -> dict[str, Any]:
    return {"host": listener.host, "port": listener.port, "advertised_host": host, "advertised_port": port}


def _data_dir(known: Mapping[str, str]) -> str:
    value = known.get("log.dirs", known.get("log.dir", DEFAULT_DATA_DIR))
    if not value or "," in value or "\0" in value:
        raise InvalidConfig(f"log.dirs is {value[:100]!a}, allowed is exactly one directory")
    return value


# The table ------------------------------------------------------------------------------------------------------------

_DEFAULTS = BrokerConfig()
_ATTRIBUTES = {"broker.rack": "rack", "log.dirs": "data_dir"}


def _attribute(name: str) -> str:
    return _ATTRIBUTES.get(name) or name.replace(".", "_")


def _key(name: str, rule: Rule, documentation: str, *synonyms: str) -> ConfigKey:
    default = getattr(_DEFAULTS, _attribute(name))
    shown = None if default is None else render(default)
    return ConfigKey(
        name=name, rule=rule, default=shown, documentation=documentation, synonyms=tuple(Synonym(s) for s in synonyms)
    )


def _special(name: str, allowed: str, default: str | None, documentation: str, *synonyms: str) -> ConfigKey:
    """A key that is not one field under its own name, and is parsed by code of its own."""
    return ConfigKey(
        name=name,
        rule=text(".*", allowed),
        default=default,
        documentation=documentation,
        synonyms=tuple(Synonym(s) for s in synonyms),
    )


_NAME = text(r"[A-Za-z0-9._-]{1,249}", "letters, digits, '.', '_' and '-', at most 249")

BROKER_CONFIGS: Mapping[str, ConfigKey] = by_name(
    (
        _special(
            "advertised.listeners",
            "PLAINTEXT://host:port",
            None,
            "Where clients reach the broker. None: where it listens.",
        ),
        _key(
            "auto.create.topics.enable",
            boolean(),
            "Whether a topic is made when a client asks for its metadata and allows it.",
        ),
        _key(
            "auto.leader.rebalance.enable",
            boolean(),
            "Whether the controller gives partitions back to their preferred leaders.",
        ),
        _key("broker.rack", _NAME, "The rack that the broker stands in."),
        _key("cluster.id", _NAME, "The cluster's id. None: one is made at the first start. Later it must be the same."),
        _key("connections.max.idle.ms", long(1), "How long a connection may be idle before it is closed."),
        _key("controlled.shutdown.enable", boolean(), "Whether a broker that stops hands over its partitions first."),
        _key("default.replication.factor", integer(1, 32_767), "Replicas of a topic that does not say how many."),
        _key("delete.topic.enable", boolean(), "Whether topics can be deleted."),
        _key("fetch.max.bytes", integer(1024), "The most that one Fetch returns."),
        _key(
            "follower.replication.throttled.rate",
            long(1),
            "Bytes per second that the broker copies of follower.replication.throttled.replicas, all together.",
        ),
        _key(
            "group.consumer.assignors",
            list_of("uniform", "range"),
            "How groups of the new protocol are assigned; the first is for members that do not ask for one.",
        ),
        _key(
            "group.consumer.heartbeat.interval.ms",
            integer(1),
            "How often members of the new protocol are told to heartbeat.",
        ),
        _key("group.consumer.max.heartbeat.interval.ms", integer(1), "The longest such interval."),
        _key("group.consumer.max.session.timeout.ms", integer(1), "The longest session of the new protocol."),
        _key("group.consumer.max.size", integer(1), "Members that a group of the new protocol may have."),
        _key(
            "group.consumer.migration.policy",
            one_of("disabled", "upgrade", "downgrade", "bidirectional"),
            "Which groups with members may change between the classic and the new protocol.",
        ),
        _key("group.consumer.min.heartbeat.interval.ms", integer(1), "The shortest such interval."),
        _key("group.consumer.min.session.timeout.ms", integer(1), "The shortest session of the new protocol."),
        _key(
            "group.consumer.session.timeout.ms",
            integer(1),
            "How long a member of the new protocol may be silent before its partitions go to others.",
        ),
        _key("group.initial.rebalance.delay.ms", integer(0), "How long a new group waits for more members."),
        _key("group.max.session.timeout.ms", integer(1), "The longest session that a member may ask for."),
        _key("group.max.size", integer(1), "Members that a group may have."),
        _key("group.min.session.timeout.ms", integer(1), "The shortest session that a member may ask for."),
        _key(
            "leader.imbalance.check.interval.seconds",
            long(1),
            "How often the controller looks for partitions that their preferred broker does not lead.",
        ),
        _key(
            "leader.replication.throttled.rate",
            long(1),
            "Bytes per second that the broker sends of leader.replication.throttled.replicas, all together.",
        ),
        _special("listeners", "PLAINTEXT://host:port", DEFAULT_LISTENER, "Where the broker listens. Port 0: any free."),
        _key("log.cleaner.backoff.ms", long(0), "How long compaction sleeps when there is nothing to do."),
        _key("log.cleaner.enable", boolean(), "Whether compaction runs."),
        _key("log.cleaner.threads", integer(1, 64), "Threads of compaction."),
        _special("log.dirs", "one directory", DEFAULT_DATA_DIR, "The data directory.", "log.dir"),
        _key(
            "log.flush.offset.checkpoint.interval.ms",
            integer(1),
            "How often records are synced where `penstock.durability` is `os`: it bounds what recovery has to read.",
        ),
        _key("log.retention.check.interval.ms", long(1), "How often retention looks for segments to delete."),
        _key(
            "max.connection.creation.rate",
            integer(1),
            "Connections that the broker takes up in a second; those above it wait. Each address can have a rate, too.",
        ),
        _key("max.connections", integer(1), "Connections that the broker accepts."),
        _key("max.connections.per.ip", integer(1), "Connections that the broker accepts from one address."),
        _key(
            "max.decompressed.message.bytes",
            integer(1024),
            "The size to which the broker decompresses a batch before it refuses it.",
        ),
        _key("max.incremental.fetch.session.cache.slots", integer(0), "Fetch sessions that are kept."),
        _key("node.id", integer(0), "The broker's number in the cluster.", "broker.id"),
        _key("num.partitions", integer(1, 10_000), "Partitions of a topic that does not say how many."),
        _key("offset.metadata.max.bytes", integer(0), "The longest text that may come with a committed offset."),
        _key("offsets.retention.check.interval.ms", long(1), "How often committed offsets are looked through."),
        _key("offsets.retention.minutes", integer(1), "How long the offsets of a group without members are kept."),
        _key("offsets.topic.num.partitions", integer(1, 10_000), "Partitions of __consumer_offsets, when it is made."),
        _key("offsets.topic.replication.factor", integer(1, 32_767), "Replicas of __consumer_offsets, at the most."),
        _key(
            "penstock.first.request.timeout.ms",
            long(1000),
            "How long a new connection may take to send its first request.",
        ),
        _key(
            "penstock.journal.bytes",
            integer(0, 1 << 30),
            "Size of the journal in which many partitions share a sync, for example 33554432; 0: there is none.",
        ),
        _key(
            "producer.id.expiration.check.interval.ms", integer(1), "How often idempotent producers are looked through."
        ),
        _key("producer.id.expiration.ms", integer(1), "How long a silent idempotent producer is remembered."),
        _key(
            "queued.max.request.bytes",
            long(1024),
            "Bytes of requests being worked on, above which the broker stops reading from its sockets.",
        ),
        _key(
            "quota.window.num",
            integer(1, 1000),
            "One more than the windows whose worth of a quota can be used at once.",
        ),
        _key(
            "quota.window.size.seconds",
            integer(1, 3600),
            "How long such a window is; also the longest wait for a share of the broker's time.",
        ),
        _key("replica.fetch.wait.max.ms", integer(1), "How long a follower's empty fetch may wait."),
        _key(
            "replica.lag.time.max.ms",
            long(1),
            "How long a follower may lag behind its leader before it counts as out of sync.",
        ),
        _key(
            "replica.selector.class",
            one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
            "Which replica a consumer is sent to: the leader, or one in its own rack.",
        ),
        _key("socket.request.max.bytes", integer(1024), "The largest request that the broker receives."),
        _key(
            "socket.send.buffer.bytes",
            integer(-1),
            "What a socket holds of replies that the peer has not taken; -1: as the operating system decides, for "
            "readers far away. Linux grants no more than `net.core.wmem_max`.",
        ),
        _key(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            integer(1),
            "How often transactions are looked through for those that take longer than their producer said.",
        ),
        _key("transaction.max.timeout.ms", integer(1), "The longest time that a producer may ask for a transaction."),
        _key(
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            integer(1),
            "How often transactional ids are looked through for those that nobody uses.",
        ),
        _key(
            "transaction.state.log.min.isr",
            integer(1),
            "Replicas of __transaction_state that must be in sync, when it is made.",
        ),
        _key(
            "transaction.state.log.num.partitions",
            integer(1, 10_000),
            "Partitions of __transaction_state, when it is made.",
        ),
        _key(
            "transaction.state.log.replication.factor",
            integer(1, 32_767),
            "Replicas of __transaction_state, at the most.",
        ),
        _key("transaction.state.log.segment.bytes", integer(1024 * 1024), "Its segment.bytes, when it is made."),
        _key(
            "transaction.two.phase.commit.enable",
            boolean(),
            "Whether producers may open transactions without a timeout, and hand them over (KIP-939).",
        ),
        _key("transactional.id.expiration.ms", integer(1), "How long a transactional id is kept that nobody uses."),
        _key(
            "zookeeper.connect",
            text(r"[^/,\s][^/\s]*(/\S*)?", "host:port,host:port/chroot"),
            "The ZooKeeper that holds the cluster's metadata. None: this broker is the whole cluster.",
        ),
        _key(
            "zookeeper.connection.timeout.ms",
            integer(1),
            "How long the broker looks for a ZooKeeper server when it starts.",
        ),
        _key(
            "zookeeper.session.timeout.ms",
            integer(1000),
            "How long ZooKeeper hears nothing from a broker before the others take it for dead.",
        ),
    )
)

# What can change while the broker runs, because whoever uses it reads it from the cluster image each time.
DYNAMIC_BROKER_CONFIGS = frozenset(
    {
        "auto.create.topics.enable",
        "default.replication.factor",
        "delete.topic.enable",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "max.connection.creation.rate",
        "num.partitions",
        *(key.synonym for key in TOPIC_CONFIGS.values() if key.synonym is not None and key.refused is None),
    }
)

_SPECIAL = frozenset({"listeners", "advertised.listeners", "log.dirs"})
_NAMES = BROKER_CONFIGS.keys() | {synonym.name for key in BROKER_CONFIGS.values() for synonym in key.synonyms}
