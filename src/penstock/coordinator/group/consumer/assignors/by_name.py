"""The assignors there are, under the names that clients and group.consumer.assignors use."""

from penstock.coordinator.group.consumer.assignors.range import assign_range
from penstock.coordinator.group.consumer.assignors.spec import Assignor
from penstock.coordinator.group.consumer.assignors.uniform import assign_uniform

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
