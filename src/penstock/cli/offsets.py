"""Which partitions there are, and where they begin and end, as the broker says."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.cli.connection import TIMEOUT_S

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Partition = tuple[str, int]  # Topic and number: confluent-kafka's own TopicPartition carries an offset along.
Offsets = dict[Partition, int]

_DELETED = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")


def partitions_by_topic(admin: "AdminClient", *, led_only: bool = True) -> dict[str, list[Partition]]:
    """The partitions of every topic; those without a leader have nobody to ask for their offsets.

    Of all topics at once: asking for one by name may create it (auto.create.topics.enable).
    """
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    return {
        name: [
            (name, number)
            for number, partition in sorted(topic.partitions.items())
            if partition.leader >= 0 or not led_only
        ]
        for name, topic in topics.items()
    }


def offsets_at(admin: "AdminClient", partitions: Iterable[Partition], spec: Any) -> Offsets:
    """The offset of each partition at an OffsetSpec; a partition that was deleted meanwhile is left out."""
    from confluent_kafka import KafkaException, TopicPartition

    asked = {TopicPartition(topic, number): spec for topic, number in partitions}
    if not asked:
        return {}
    found = {}
    for partition, future in admin.list_offsets(asked, request_timeout=TIMEOUT_S).items():
        try:
            found[partition.topic, partition.partition] = future.result().offset
        except KafkaException as exception:
            if exception.args[0].name() not in _DELETED:
                raise
    return found
