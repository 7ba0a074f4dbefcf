"""Which protocol a group uses: one that every member supports, by the members' votes. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.group_config import GroupConfig


class ProtocolCounts:
    """How many members support each protocol, kept up to date so that a join costs as much as it names protocols."""

    def __init__(self) -> None:
        self._members = 0
        self._counts: Counter[str] = Counter()

    def copy(self) -> "ProtocolCounts":
        other = ProtocolCounts()
        other._members, other._counts = self._members, self._counts.copy()
        return other

    def add(self, protocols: Sequence[Protocol]) -> None:
        self._members += 1
        self._counts.update(protocol.name for protocol in protocols)

    def remove(self, protocols: Sequence[Protocol]) -> None:
        self._members -= 1
        for protocol in protocols:
            if self._counts[protocol.name] == 1:
                del self._counts[protocol.name]
            else:
                self._counts[protocol.name] -= 1

    def is_common(self, name: str) -> bool:
        """Whether every member supports `name`; true of any name while there are no members."""
        return self._counts.get(name, 0) == self._members

    def has_common(self, protocols: Iterable[Protocol]) -> bool:
        return any(self.is_common(protocol.name) for protocol in protocols)

    def select(self, members: Iterable[Sequence[Protocol]]) -> str:
        """The common protocol with most votes; each member votes for the first of its own that is common."""
        votes: Counter[str] = Counter()
        for protocols in members:
            # Nobody joins who shares no protocol with all others, so there is one.
            votes[next(protocol.name for protocol in protocols if self.is_common(protocol.name))] += 1
        return max(votes, key=lambda name: votes[name])


def are_sound(protocols: Sequence[Protocol]) -> bool:
    """Whether there is one, and none twice: a name that counts twice would count for an absent member."""
    return 0 < len({protocol.name for protocol in protocols}) == len(protocols)


def are_within_bounds(protocols: Sequence[Protocol], config: GroupConfig) -> bool:
    if len(protocols) > config.protocols_max:
        return False
    return sum(len(name.encode()) + len(metadata) for name, metadata in protocols) <= config.member_metadata_bytes_max
