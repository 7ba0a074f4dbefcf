"""What happens to a group: members join, leave, are killed, are paused for too long, while a producer keeps writing."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from . import group_checks
from .committed_offsets import commit_by_hand, committed, every_commit
from .group_member import SESSION_MS, Event, GroupMember, MemberKind, wait_until
from .group_writer import GroupWriter
from .topics import create_topic

PARTITION_COUNT = 6
RESUMED_COUNT = 60

UNKNOWN_MEMBER_ID = 25
# The hand speaks a version that does not know member epochs, so of a member of the new protocol it is not taken at all.
NOT_THIS_GENERATION = {"ILLEGAL_GENERATION": 22, "UNSUPPORTED_VERSION": 35}.values()


class Group:
    def __init__(self, bootstrap: str, directory: Path, name: str, assignor: str) -> None:
        directory.mkdir()
        self.bootstrap, self.name, self.topic = bootstrap, name, f"{name}-topic"
        self.members: list[GroupMember] = []
        self._directory, self._assignor = directory, assignor
        create_topic(bootstrap, self.topic, partition_count=PARTITION_COUNT)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.writer = GroupWriter(bootstrap, self.topic, PARTITION_COUNT)

    def join(self, kind: MemberKind) -> GroupMember:
        name = f"{'abcdefghij'[len(self.members)]}-{kind.name}"
        assignor = kind.assignor or self._assignor
        topic = f"^{self.topic}" if kind.is_by_pattern else self.topic
        settings = [self.bootstrap, self.name, topic, name, assignor, str(SESSION_MS)]
        member = GroupMember(kind, settings, self._directory / f"{name}.jsonl", name)
        self.members.append(member)
        return member

    def wait_until_shared_by(self, *members: GroupMember) -> None:
        """Each has a share, and together they have every partition once."""

        def is_shared() -> bool:
            shares = [member.owned() for member in members]
            return all(shares) and sorted(itertools.chain(*shares)) == list(range(PARTITION_COUNT))

        wait_until(is_shared, lambda: "; ".join(member.describe() for member in members))

    def wait_until_read(self) -> None:
        """Nothing more is written: until all of it is delivered and committed."""
        acked = self.writer.acked
        ends = dict.fromkeys(range(PARTITION_COUNT), 0)
        for partition, offset in acked:
            ends[partition] = max(ends[partition], offset + 1)

        def what() -> str:
            missing = acked.keys() - group_checks.delivered(self.members).keys()
            who = "; ".join(member.describe() for member in self.members)
            return f"{len(missing)} missing, ends {ends}, committed {committed(self.admin, self.name)}: {who}"

        wait_until(lambda: acked.keys() <= group_checks.delivered(self.members).keys(), what)
        wait_until(lambda: committed(self.admin, self.name) == ends, what)

    def check(self) -> None:
        group_checks.assert_all_delivered(self.members, self.writer.acked)
        group_checks.assert_one_owner_per_generation(self.members)
        group_checks.assert_generations_grow(self.members)
        group_checks.assert_nothing_committed_comes_again(self.members)
        commits = every_commit(self.bootstrap, self.name)
        assert sorted(commits) == list(range(PARTITION_COUNT))
        group_checks.assert_never_goes_back(commits)


@contextmanager
def open_group(bootstrap: str, directory: Path, name: str, assignor: str) -> Iterator[Group]:
    group = Group(bootstrap, directory, name, assignor)
    try:
        yield group
    finally:
        group.writer.close()
        for member in group.members:
            member.kill()


def full_story(group: Group, kinds: Sequence[MemberKind]) -> None:
    group.writer.start()
    first, killed, zombie = [group.join(kind) for kind in itertools.islice(itertools.cycle(kinds), 3)]
    group.wait_until_shared_by(first, killed, zombie)
    last = group.join(kinds[-1])
    group.wait_until_shared_by(first, killed, zombie, last)
    first.leave()
    group.wait_until_shared_by(killed, zombie, last)

    zombie.tell("hold")
    zombie.wait_for("holding")
    zombie.pause()
    killed.kill()
    group.wait_until_shared_by(last)
    zombie.tell("commit")  # Before it wakes: it shall not find out by itself first.
    zombie.resume()
    answer = _answer_to_held_commit(zombie)
    assert answer["event"] == "refused", f"a zombie has committed: {answer}"
    _assert_shut_out(group, zombie, last, generation=answer["generation"])

    group.wait_until_shared_by(zombie, last)
    _finish(group, [zombie, last], kinds[0])


def _answer_to_held_commit(member: GroupMember) -> Event:
    def answers() -> list[Event]:
        since = itertools.dropwhile(lambda event: event["event"] != "holding", member.events())
        return [event for event in since if event["event"] in ("committed", "refused")]

    wait_until(lambda: bool(answers()), member.describe)
    return answers()[0]


def _assert_shut_out(group: Group, zombie: GroupMember, alive: GroupMember, *, generation: int) -> None:
    """Clients may find out on their own before they ask. The broker must refuse in any case."""
    zombie_id = next(event["member"] for event in zombie.told("assigned") if event["generation"] == generation)

    def commit(member: str) -> int:
        return commit_by_hand(
            group.bootstrap,
            group=group.name,
            topic=group.topic,
            generation=generation,
            member=member,
            partition=0,
            offset=0,
        )

    assert commit(zombie_id) in (UNKNOWN_MEMBER_ID, *NOT_THIS_GENERATION)  # Java joins again under its old name.
    answers: list[int] = []

    def is_known() -> bool:
        """But if it was itself too slow for its session, it comes back under another name."""
        answers.append(commit(alive.told("assigned")[-1]["member"]))
        return answers[-1] != UNKNOWN_MEMBER_ID

    wait_until(is_known, alive.describe)
    assert answers[-1] in NOT_THIS_GENERATION
    assert commit("never-joined") == UNKNOWN_MEMBER_ID


def short_story(group: Group, kinds: Sequence[MemberKind]) -> None:
    group.writer.start()
    members = [group.join(kind) for kind in kinds]
    group.wait_until_shared_by(*members)
    first, killed, *rest = members
    first.leave()
    group.wait_until_shared_by(killed, *rest)
    killed.kill()
    group.wait_until_shared_by(*rest)
    _finish(group, rest, kinds[0])


def paused_story(group: Group, kinds: Sequence[MemberKind]) -> None:
    """As the full one, for a client that cannot be told to hold a commit back."""
    group.writer.start()
    first, killed, paused, last = [group.join(kind) for kind in itertools.islice(itertools.cycle(kinds), 4)]
    group.wait_until_shared_by(first, killed, paused, last)
    first.leave()
    group.wait_until_shared_by(killed, paused, last)
    paused.pause()
    killed.kill()
    group.wait_until_shared_by(last)
    paused.resume()
    group.wait_until_shared_by(paused, last)
    _finish(group, [paused, last], kinds[0])


def migration_story(group: Group, kinds: Sequence[MemberKind]) -> None:
    """From the classic protocol to the new one and back, member by member, while a producer keeps writing."""
    classic, other_classic, new, other_new = kinds
    group.writer.start()
    first, second = group.join(classic), group.join(other_classic)
    group.wait_until_shared_by(first, second)
    third = group.join(new)
    group.wait_until_shared_by(first, second, third)
    fourth = group.join(other_new)
    group.wait_until_shared_by(first, second, third, fourth)
    first.leave()
    second.kill()
    group.wait_until_shared_by(third, fourth)
    back = group.join(classic)
    group.wait_until_shared_by(third, fourth, back)
    third.kill()
    fourth.leave()
    group.wait_until_shared_by(back)
    beside = group.join(other_classic)
    group.wait_until_shared_by(back, beside)
    _finish(group, [back, beside], new)


def _finish(group: Group, members: Sequence[GroupMember], kind: MemberKind) -> None:
    group.writer.stop()
    group.wait_until_read()
    for member in members:
        member.leave()
    before = set(group.writer.acked)
    resumed = group.join(kind)
    group.writer.write(RESUMED_COUNT)
    group.writer.flush()
    group.wait_until_read()
    resumed.leave()
    group.check()
    new = group_checks.delivered([resumed]).keys()
    assert len(new) == RESUMED_COUNT and not new & before, "did not go on where the group had stopped"
