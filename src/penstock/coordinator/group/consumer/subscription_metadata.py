"""Which topics a group subscribes to and how many partitions they have: what makes a new epoch when it changes."""

from collections.abc import Collection

from penstock.base.errors import Refused
from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.records import (
    ConsumerGroupPartitionMetadata,
    ConsumerGroupRegularExpression,
    ConsumerGroupTombstone,
    RecordKind,
)
from penstock.coordinator.group.consumer.regex_subscription import matching
from penstock.coordinator.group.consumer.topics import Topics
from penstock.coordinator.group.decision import Now


def maybe_refresh(draft: Draft, topics: Topics, now: Now) -> bool:
    """Bring the group's topics up to date with its members and with the cluster; gives whether they changed."""
    group = draft.group
    _resolve_regexes(draft, topics, now)
    found = (topics.find(name) for name in sorted(group.subscribed_names()))
    there = {topic.name: topic for topic in found if topic is not None}
    group.changed_topics = set()
    if there == group.topics:
        return False
    draft.write(ConsumerGroupPartitionMetadata(group_id=group.group_id, topics=tuple(there.values())))
    return True


def _resolve_regexes(draft: Draft, topics: Topics, now: Now) -> None:
    group = draft.group
    for regex in sorted(group.regexes.keys() - group.regex_counts.keys()):
        kind = RecordKind.REGULAR_EXPRESSION
        draft.write(ConsumerGroupTombstone(kind=kind, group_id=group.group_id, subject=regex))
    for regex in list(group.regex_counts):
        known = group.regexes.get(regex)
        if known is None or group.changed_topics is None:
            names = _matching(regex, topics, topics.names())
        else:
            names = (known.topics - group.changed_topics) | _matching(regex, topics, group.changed_topics)
        if known is None or names != known.topics:
            draft.write(
                ConsumerGroupRegularExpression(
                    group_id=group.group_id, regex=regex, topics=names, timestamp_ms=now.wall_ms
                )
            )


def _matching(regex: str, topics: Topics, names: Collection[str]) -> frozenset[str]:
    try:
        return matching(regex, (name for name in names if name in topics.names()))
    except Refused:
        return frozenset()  # From a log that another version wrote: what we cannot read stands for nothing.
