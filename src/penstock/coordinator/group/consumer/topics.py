"""The topics of the cluster as groups see them: passed in by the shell with every change, looked at by name or id."""

from collections.abc import Collection
from typing import Protocol
from uuid import UUID

from penstock.coordinator.group.consumer.records import TopicMetadata


class Topics(Protocol):
    """A value: what was asked once is answered the same way again."""

    def find(self, name: str) -> TopicMetadata | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def names(self) -> Collection[str]:
        """Those that a regular expression may stand for: internal topics are not among them."""


class NoTopics:
    def find(self, name: str) -> TopicMetadata | None:
        return None

    def name_of(self, topic_id: UUID) -> str | None:
        return None

    def names(self) -> Collection[str]:
        return ()
