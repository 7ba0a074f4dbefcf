"""The topics of a cluster image, as the pure part of the coordinator asks for them."""

from collections.abc import Collection
from functools import cached_property
from uuid import UUID

from penstock.cluster.image import ClusterImage
from penstock.coordinator.group.consumer.records import TopicMetadata


class ImageTopics:
    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def find(self, name: str) -> TopicMetadata | None:
        topic = self._image.topics.get(name)
        return None if topic is None else TopicMetadata(topic.topic_id, name, len(topic.partitions))

    def name_of(self, topic_id: UUID) -> str | None:
        return self._image.topic_names.get(topic_id)

    def names(self) -> Collection[str]:
        return self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for name, topic in self._image.topics.items() if not topic.is_internal)
