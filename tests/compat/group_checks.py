"""What must hold of a group, whatever was done to its members: judged from what they told, when all is over."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from .group_member import GroupMember

Acked = Mapping[tuple[int, int], str]


def delivered(members: Sequence[GroupMember]) -> dict[tuple[int, int], str]:
    return {
        (partition, offset): value
        for member in members
        for event in member.told("records")
        for partition, offset, value in event["records"]
    }


def assert_all_delivered(members: Sequence[GroupMember], acked: Acked) -> None:
    found = delivered(members)
    missing = sorted(acked.keys() - found.keys())
    assert not missing, f"{len(missing)} of {len(acked)} records never delivered, the first are {missing[:5]}"
    wrong = {place: (value, found[place]) for place, value in acked.items() if found[place] != value}
    assert not wrong, f"delivered with another value: {list(wrong.items())[:5]}"


def assert_one_owner_per_generation(members: Sequence[GroupMember]) -> None:
    """Nobody else was given, and nobody else read, a partition in the same generation."""
    owners: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for member in members:
        for event in member.told("assigned"):
            for partition in event["partitions"]:
                owners[event["generation"], partition].add(member.name)
        for event in member.told("records"):
            for partition, _, _ in event["records"]:
                owners[event["generation"], partition].add(member.name)
    shared = {place: names for place, names in owners.items() if len(names) > 1}
    assert not shared, f"(generation, partition) with several owners: {shared}"
    assert owners and min(generation for generation, _ in owners) >= 1


def assert_nothing_committed_comes_again(members: Sequence[GroupMember]) -> None:
    """A record at or above the committed offset may come twice; one below it may not.

    But for a member that was shut out and does not know yet: it reads on in its old generation.
    """
    commits: defaultdict[int, list[tuple[float, int, int]]] = defaultdict(list)  # (when, generation, offset)s
    for member in members:
        for event in member.told("committed"):
            for partition, offset in event["offsets"].items():
                commits[int(partition)].append((event["at"], event["generation"], offset))
    again = [
        (member.name, event["generation"], partition, offset)
        for member in members
        for event in member.told("records")
        for partition, offset, _ in event["records"]
        if any(
            at < event["at"] and generation <= event["generation"] and offset < committed
            for at, generation, committed in commits[partition]
        )
    ]
    assert not again, f"{len(again)} committed records were delivered again, the first are {again[:5]}"


def assert_never_goes_back(commits: Mapping[int, Sequence[int]]) -> None:
    """`commits`: every offset that was ever committed, by partition, in the order of __consumer_offsets."""
    for partition, offsets in commits.items():
        back = [(a, b) for a, b in itertools.pairwise(offsets) if b < a]
        assert not back, f"committed offset of partition {partition} went back: {back[:5]}"


def assert_generations_grow(members: Sequence[GroupMember]) -> None:
    for member in members:
        generations = [event["generation"] for event in member.told("assigned")]
        assert generations == sorted(generations), f"{member.name} was taken back to an older generation: {generations}"
