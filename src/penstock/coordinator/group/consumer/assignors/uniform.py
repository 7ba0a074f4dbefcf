"""The `uniform` assignor: every member gets the same number of partitions, give or take one, and keeps what it had.

All members subscribe to the same topics, usually: then each keeps what it has up to its share, and what is left goes
round. Otherwise `mixed.py` balances as far as the subscriptions allow.
"""

from collections.abc import Iterator, Sequence
from uuid import UUID

from penstock.coordinator.group.consumer.assignors.mixed import assign_mixed
from penstock.coordinator.group.consumer.assignors.spec import MemberSpec, PartitionCounts, Targets

Share = dict[UUID, set[int]]


def assign_uniform(members: Sequence[MemberSpec], counts: PartitionCounts) -> Targets:
    if not members:
        return {}
    topic_ids = members[0].topic_ids
    if any(member.topic_ids != topic_ids for member in members):
        return assign_mixed(members, counts)
    return _assign_equal(sorted(members), {topic_id: counts[topic_id] for topic_id in sorted(topic_ids)})


def _assign_equal(members: Sequence[MemberSpec], counts: PartitionCounts) -> Targets:
    is_taken = {topic_id: bytearray(count) for topic_id, count in counts.items()}
    kept = [_kept(member, is_taken) for member in members]
    sizes = [sum(map(len, share.values())) for share in kept]
    quota, extra = divmod(sum(counts.values()), len(members))
    for number, share in enumerate(kept):
        if sizes[number] > quota:
            limit = quota + (extra > 0)  # Who has more than its quota is the first to keep one more.
            extra -= sizes[number] >= limit > quota
            _give_up(share, sizes[number] - limit, is_taken)
            sizes[number] = limit
    _deal(kept, sizes, quota, list(_untaken(is_taken)))
    return {
        member.member_id: {topic_id: frozenset(partitions) for topic_id, partitions in share.items()}
        for member, share in zip(members, kept, strict=True)
    }


def _kept(member: MemberSpec, is_taken: dict[UUID, bytearray]) -> Share:
    """What the member has of what there is; of a partition that two have, the first has it."""
    share: Share = {}
    for topic_id, partitions in member.target.items():
        taken = is_taken.get(topic_id)
        if taken is None:
            continue
        mine = {partition for partition in partitions if partition < len(taken) and not taken[partition]}
        for partition in mine:
            taken[partition] = 1
        if mine:
            share[topic_id] = mine
    return share


def _give_up(share: Share, number: int, is_taken: dict[UUID, bytearray]) -> None:
    """Of the topic that the member has most of, so that topics stay spread."""
    for _ in range(number):
        topic_id = max(share, key=lambda topic_id: len(share[topic_id]))
        partition = max(share[topic_id])
        share[topic_id].remove(partition)
        is_taken[topic_id][partition] = 0
        if not share[topic_id]:
            del share[topic_id]


def _untaken(is_taken: dict[UUID, bytearray]) -> Iterator[tuple[UUID, int]]:
    for topic_id, taken in is_taken.items():
        position = taken.find(0)
        while position >= 0:
            yield topic_id, position
            position = taken.find(0, position + 1)


def _deal(kept: list[Share], sizes: list[int], quota: int, rest: list[tuple[UUID, int]]) -> None:
    """One after the other, to those below their quota; when all have it, one each to those who have no extra one."""
    needy = [number for number, size in enumerate(sizes) if size < quota]
    position = 0
    while needy:
        still_needy = []
        for number in needy:
            topic_id, partition = rest[position]
            position += 1
            kept[number].setdefault(topic_id, set()).add(partition)
            sizes[number] += 1
            if sizes[number] < quota:
                still_needy.append(number)
        needy = still_needy
    for number, size in enumerate(sizes):
        if position == len(rest):
            break
        if size == quota:
            topic_id, partition = rest[position]
            position += 1
            kept[number].setdefault(topic_id, set()).add(partition)
