"""A group as it will be: the records of a decision in the making are applied to a copy as they are written."""

from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.records import ConsumerRecord
from penstock.coordinator.group.decision import Decision


class Draft:
    def __init__(self, group: ConsumerGroup, out: Decision) -> None:
        self.group = group  # A copy, or a group that is not there yet.
        self._out = out

    def write(self, record: ConsumerRecord) -> None:
        self._out.records.append(record)
        self.group.apply(record)
