"""How a member gets from what it has to what it shall have: first it gives up, then it is given. Pure.

    STABLE, UNRELEASED   go towards the latest target. If the member must give something up, it is told, and keeps its
                         epoch until it has (UNREVOKED); else it is given what is free, and has the target's epoch.
    UNREVOKED            waits until the partitions that the member says it owns are without those. Then as above.

What a member says it owns is taken at its word, as Kafka does: one that says so and then takes what an earlier answer
gave it owns more than we know, until its next answer. Its commits are fenced by its epoch.

A partition is given to a member only when no other has it or still has to give it up. That is all that keeps two from
owning it, so `owner` must count both.
"""

from collections.abc import Callable
from uuid import UUID

from penstock.coordinator.group.consumer.assignment import Assignment, overlap
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.consumer.records import ConsumerGroupCurrentMemberAssignment as Current

Owner = Callable[[UUID, int], str | None]


def reconcile(
    current: Current, target_epoch: int, target: Assignment, owned: Assignment | None, owner: Owner
) -> Current:
    """The member's next state; `current` itself when there is no way on. `owned` of None: it did not say."""
    match current.state:
        case MemberState.STABLE:
            if current.epoch == target_epoch:
                return current
            return _next(current, current.epoch, target_epoch, target, owned, owner)
        case MemberState.UNREVOKED_PARTITIONS:
            if owned is None or overlap(owned, current.to_revoke):
                return current
            # A step of its own, so that the member sees that we have heard it even if there is more to give up.
            epoch = min(current.epoch + 1, target_epoch)
            return _next(current, epoch, target_epoch, target, owned, owner)
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(current, current.epoch, target_epoch, target, owned, owner)


def _next(
    current: Current, epoch: int, target_epoch: int, target: Assignment, owned: Assignment | None, owner: Owner
) -> Current:
    kept: dict[UUID, frozenset[int]] = {}
    to_revoke: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        if staying := partitions & wanted:
            kept[topic_id] = staying
        if leaving := partitions - wanted:
            to_revoke[topic_id] = leaving
    if to_revoke and (owned is None or overlap(owned, to_revoke)):
        return current._replace(
            epoch=epoch,
            previous_epoch=current.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            to_revoke=to_revoke,
        )
    is_waiting = False
    for topic_id, wanted in target.items():
        missing = wanted - kept.get(topic_id, frozenset())
        free = frozenset(p for p in missing if owner(topic_id, p) in (None, current.member_id))
        is_waiting |= len(free) < len(missing)
        if free:
            kept[topic_id] = kept.get(topic_id, frozenset()) | free
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    if (state, target_epoch, kept) == (current.state, current.epoch, current.assigned) and not current.to_revoke:
        return current
    return current._replace(epoch=target_epoch, previous_epoch=current.epoch, state=state, assigned=kept, to_revoke={})
