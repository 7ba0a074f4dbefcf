"""The shape of a decision: what to write to the store, under which conditions, and what to answer."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.cluster.store.base import Check, Write

R = TypeVar("R")


@dataclass(slots=True)
class Plan(Generic[R]):
    """Answers in the order of the request. The writes of the items that were accepted are committed together."""

    results: list[R] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
