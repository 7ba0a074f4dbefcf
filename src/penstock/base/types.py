"""The numbers and names that cross module borders, each with a type of its own."""

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
NodeId = NewType("NodeId", int)
TopicId = NewType("TopicId", UUID)

NO_EPOCH = LeaderEpoch(-1)
NO_NODE = NodeId(-1)
NO_OFFSET = Offset(-1)
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
