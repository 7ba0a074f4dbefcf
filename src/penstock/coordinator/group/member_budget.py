"""How much memory the members of all groups together may take: what they told the coordinator, and their assignments.

Kafka has no such limit: there, whoever may join a group can fill the heap. A group with more than a record can hold
(max.message.bytes) never becomes stable, so the limit is met by many groups, or by many members that only join.
"""

from penstock.coordinator.group.commands import JoinGroup
from penstock.coordinator.group.member import Member

MEMBER_BYTES = 1024  # One member without its bytes: the object, its ids and strings, its deadline. Measured: 830.


class MemberBudget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0  # The sum of all members' `charged_bytes`, and of what was added.

    def can_join(self, command: JoinGroup, member: Member | None) -> bool:
        """Whether there is room for what `command` says; `member`: who said something else before, if anyone."""
        held = 0 if member is None else member.charged_bytes
        asked = MEMBER_BYTES + sum(len(name) + len(metadata) for name, metadata in command.protocols)
        return self.has_room(asked - held)

    def has_room(self, more_bytes: int) -> bool:
        return more_bytes <= 0 or self.bytes_used + more_bytes <= self.bytes_max

    def add(self, more_bytes: int) -> None:
        """Of members of the new protocol, whose owner knows what each takes; less than nothing gives back."""
        self.bytes_used += more_bytes

    def charge(self, member: Member) -> None:
        """To be called whenever the member's bytes have changed."""
        held = sum(len(name) + len(metadata) for name, metadata in member.protocols) + len(member.assignment)
        self._set(member, MEMBER_BYTES + held)

    def release(self, member: Member) -> None:
        self._set(member, 0)

    def _set(self, member: Member, charged_bytes: int) -> None:
        self.bytes_used += charged_bytes - member.charged_bytes
        member.charged_bytes = charged_bytes
