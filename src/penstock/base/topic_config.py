"""A topic's settings: what a partition reads, and the table that clients, the console and the docs are shown.

A topic has overrides (text, in the metadata store) over the broker's defaults. Keys are Kafka's; ours start with
`penstock.`. A key that Kafka has and we cannot honour is in the table too, and accepts its default alone.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from penstock.base.config_key import (
    INT_MAX,
    LONG_MAX,
    ConfigKey,
    InvalidConfig,
    Rule,
    Synonym,
    boolean,
    by_name,
    double,
    integer,
    list_matching,
    list_of,
    long,
    one_of,
    render,
)

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
ALL_REPLICAS = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicConfig:
    max_message_bytes: int = 1_048_588  # Kafka's: 1 MiB and the 12 bytes that lead a batch.
    segment_bytes: int = 1 << 30  # Few files per partition; retention frees at most this much at once.
    segment_ms: int = 7 * DAY_MS  # A quiet topic still rolls, or retention would never find a closed segment.
    segment_jitter_ms: int = 0  # No spread: partitions made together are few on one broker.
    segment_index_bytes: int = 10 << 20  # 1.3 million entries of 8 bytes: an entry per 4 KiB of a 5 GiB segment.
    index_interval_bytes: int = 4096  # A lookup scans at most one page of the file.
    retention_ms: int = 14 * DAY_MS  # Two weeks: a holiday is not a loss of data.
    retention_bytes: int = -1  # No bound on size: only time deletes, so that nobody loses data to a burst.
    cleanup_policy: tuple[str, ...] = ("delete",)
    message_timestamp_type: str = "CreateTime"  # The producer's time survives mirroring and replays.
    message_timestamp_before_max_ms: int = LONG_MAX  # Old records are welcome: backfills are common.
    message_timestamp_after_max_ms: int = HOUR_MS  # A clock further ahead is wrong, and would defeat retention.
    compression_type: str = "producer"  # Batches stay as they came: no work on the broker.
    delete_retention_ms: int = DAY_MS  # A consumer has a day to see a tombstone.
    min_cleanable_dirty_ratio: float = 0.5  # Compaction rewrites a log once half of it is new.
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    file_delete_delay_ms: int = MINUTE_MS  # Readers inside a deleted segment get a minute to leave it.
    min_insync_replicas: int = 1  # One broker is a whole cluster here.
    unclean_leader_election_enable: bool = False  # An acked record is kept, even if the partition has to wait.
    durability: str = "fsync"  # An acked record is on disk. "os": in the page cache, as with Kafka.
    # Nothing is throttled, and what is not in sync catches up as fast as it can.
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    verify_records: bool = False  # Kafka always does; here it takes a microsecond for each record.

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy

    def with_overrides(self, overrides: Mapping[str, str]) -> Self:
        """These settings with `overrides` (Kafka's names, text) on top; InvalidConfig when one is not possible."""
        if not overrides:
            return self
        return dataclasses.replace(self, **_parsed(overrides))

    def text(self, name: str) -> str:
        """The value of the setting `name` as Kafka shows it."""
        key = TOPIC_CONFIGS[name]
        if key.refused is not None:
            return key.default or ""
        return render(getattr(self, key.attribute))


def parse_topic_config(overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """The settings of a topic with `overrides`; InvalidConfig when one is unknown, out of range, or against another.

    Asked before overrides are accepted. Those accepted once stay in force (`with_overrides`) when a default changes
    under them.
    """
    config = defaults.with_overrides(overrides)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms is {config.min_compaction_lag_ms}, "
            f"allowed is at most max.compaction.lag.ms, {config.max_compaction_lag_ms}"
        )
    return config


def _parsed(overrides: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for name, text in overrides.items():
        key = TOPIC_CONFIGS.get(name)
        if key is None:
            raise InvalidConfig(f"{name[:100]!a} is not a topic setting")
        value = key.parse(text)
        if key.refused is None:
            values[key.attribute] = value
    return values


# The table ------------------------------------------------------------------------------------------------------------

DEFAULT_TOPIC_CONFIG = TopicConfig()
_TIERED = "tiered storage to object stores is not planned; the lake is Spark's job"
_FLUSH = "penstock.durability decides: with fsync every acked record is on disk, with os the kernel decides when"
_LEVEL = "the broker recompresses at the codec's default level only"
# Ten digits hold any partition and any broker.
_THROTTLED_REPLICAS = list_matching(r"\*|[0-9]{1,10}:[0-9]{1,10}", "* or a list of partition:broker")


def _key(name: str, rule: Rule, documentation: str, *synonyms: str | Synonym) -> ConfigKey:
    attribute = name.removeprefix("penstock.").replace(".", "_")
    return ConfigKey(
        name=name,
        rule=rule,
        default=render(getattr(DEFAULT_TOPIC_CONFIG, attribute)),
        documentation=documentation,
        synonyms=tuple(Synonym(item) if isinstance(item, str) else item for item in synonyms),
    )


def _refused(name: str, rule: Rule, default: str, reason: str, *synonyms: str) -> ConfigKey:
    return ConfigKey(
        name=name,
        rule=rule,
        default=default,
        documentation=f"Only the default: {reason}.",
        synonyms=tuple(Synonym(item) for item in synonyms),
        refused=reason,
    )


TOPIC_CONFIGS: Mapping[str, ConfigKey] = by_name(
    (
        _key(
            "cleanup.policy",
            list_of("delete", "compact"),
            "What happens to old segments: delete removes them by age or size, compact keeps the last record of "
            "each key. Empty keeps everything.",
            "log.cleanup.policy",
        ),
        _refused("compression.gzip.level", integer(-1, 9), "-1", _LEVEL, "compression.gzip.level"),
        _refused("compression.lz4.level", integer(1, 17), "9", _LEVEL, "compression.lz4.level"),
        _key(
            "compression.type",
            one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            "The codec of batches on disk. producer keeps what the producer chose.",
            "compression.type",
        ),
        _refused("compression.zstd.level", integer(-131_072, 22), "3", _LEVEL, "compression.zstd.level"),
        _key(
            "delete.retention.ms",
            long(0),
            "How long compaction keeps a tombstone after it has become the last record of its key.",
            "log.cleaner.delete.retention.ms",
        ),
        _key(
            "file.delete.delay.ms",
            long(0),
            "How long the file of a deleted segment stays on disk.",
            "log.segment.delete.delay.ms",
        ),
        _refused("flush.messages", long(1), str(LONG_MAX), _FLUSH, "log.flush.interval.messages"),
        _refused("flush.ms", long(0), str(LONG_MAX), _FLUSH, "log.flush.interval.ms"),
        _key(
            "follower.replication.throttled.replicas",
            _THROTTLED_REPLICAS,
            "Replicas that copy no faster than follower.replication.throttled.rate until they are in sync.",
        ),
        _key(
            "index.interval.bytes",
            integer(0),
            "Bytes of a segment between two entries of its index.",
            "log.index.interval.bytes",
        ),
        _key(
            "leader.replication.throttled.replicas",
            _THROTTLED_REPLICAS,
            "Replicas that, leading, send no faster than leader.replication.throttled.rate to whom is not in sync.",
        ),
        _refused("local.retention.bytes", long(-2), "-2", _TIERED, "log.local.retention.bytes"),
        _refused("local.retention.ms", long(-2), "-2", _TIERED, "log.local.retention.ms"),
        _key(
            "max.compaction.lag.ms",
            long(1),
            "The longest time that a record stays out of compaction.",
            "log.cleaner.max.compaction.lag.ms",
        ),
        _key("max.message.bytes", integer(0), "The largest batch that the topic takes.", "message.max.bytes"),
        _key(
            "message.timestamp.after.max.ms",
            long(0),
            "How far in the future a producer's timestamp may lie (CreateTime).",
            "log.message.timestamp.after.max.ms",
        ),
        _key(
            "message.timestamp.before.max.ms",
            long(0),
            "How far in the past a producer's timestamp may lie (CreateTime).",
            "log.message.timestamp.before.max.ms",
        ),
        _key(
            "message.timestamp.type",
            one_of("CreateTime", "LogAppendTime"),
            "Whose clock stamps a record: the producer's or the broker's.",
            "log.message.timestamp.type",
        ),
        _key(
            "min.cleanable.dirty.ratio",
            double(0, 1),
            "The part of a log that must be new before compaction rewrites it.",
            "log.cleaner.min.cleanable.ratio",
        ),
        _key(
            "min.compaction.lag.ms",
            long(0),
            "The shortest time that a record stays out of compaction.",
            "log.cleaner.min.compaction.lag.ms",
        ),
        _key(
            "min.insync.replicas",
            integer(1),
            "Replicas that must have a record before acks=all is answered.",
            "min.insync.replicas",
        ),
        _key(
            "penstock.durability",
            one_of("fsync", "os"),
            "What an acked record has survived: fsync, it is on disk; os, it is in the page cache, as with Kafka, "
            "and a power cut can lose it.",
            "penstock.durability",
        ),
        _key(
            "penstock.verify.records",
            boolean(),
            "Whether every record of a batch is looked at before it is stored, also inside compressed batches: its "
            "lengths, its offset, and that there are as many as the batch says.",
            "penstock.verify.records",
        ),
        _refused(
            "preallocate",
            boolean(),
            "false",
            "segments reserve space as they grow, up to 16 MiB ahead",
            "log.preallocate",
        ),
        _refused("remote.log.copy.disable", boolean(), "false", _TIERED),
        _refused("remote.log.delete.on.disable", boolean(), "false", _TIERED),
        _refused("remote.storage.enable", boolean(), "false", _TIERED),
        _key(
            "retention.bytes",
            long(-1),
            "The size of a partition above which old segments are deleted. -1: no bound.",
            "log.retention.bytes",
        ),
        _key(
            "retention.ms",
            long(-1),
            "The age at which a segment is deleted. -1: never.",
            "log.retention.ms",
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
        _key(
            "segment.bytes",
            integer(1024),
            "The size at which a segment is closed and the next begun.",
            "log.segment.bytes",
        ),
        _key(
            "segment.index.bytes",
            integer(4),
            "The size of an index at which its segment is closed.",
            "log.index.size.max.bytes",
        ),
        _key(
            "segment.jitter.ms",
            long(0),
            "A random part taken off segment.ms, so that segments do not all roll at once.",
            "log.roll.jitter.ms",
            Synonym("log.roll.jitter.hours", HOUR_MS),
        ),
        _key(
            "segment.ms",
            long(1),
            "The age at which a segment is closed even when it is not full.",
            "log.roll.ms",
            Synonym("log.roll.hours", HOUR_MS),
        ),
        _key(
            "unclean.leader.election.enable",
            boolean(),
            "Whether a replica that lacks acked records may lead when no other is left.",
            "unclean.leader.election.enable",
        ),
    )
)

# Which topic setting a broker's setting gives the default of, and how many of the topic's units one of its units is.
BROKER_SYNONYMS: Mapping[str, tuple[ConfigKey, int]] = {
    synonym.name: (key, synonym.factor) for key in TOPIC_CONFIGS.values() for synonym in key.synonyms
}

_SCALED_MAX = {factor: LONG_MAX // factor for _, factor in BROKER_SYNONYMS.values()}


def topic_default_overrides(properties: Mapping[str, str]) -> dict[str, str]:
    """Topic overrides from a broker's properties; of several synonyms for one setting the strongest counts."""
    overrides: dict[str, str] = {}
    for key in TOPIC_CONFIGS.values():
        for name, factor in reversed(key.synonyms):
            if name in properties:
                overrides[key.name] = _scaled(key, name, factor, properties[name])
    return overrides


def _scaled(key: ConfigKey, name: str, factor: int, text: str) -> str:
    if factor == 1:
        key.parse(text, given_as=name)
        return text
    rule = integer(-1 if key.name == "retention.ms" else 0, min(INT_MAX, _SCALED_MAX[factor]))
    value = ConfigKey(name=name, rule=rule, default=None, documentation="").parse(text)
    assert isinstance(value, int)
    scaled = str(value * factor if value >= 0 else value)
    key.parse(scaled, given_as=name)
    return scaled
