"""Rules 1 and 2: after any elections, followers end with a prefix of their leader's log and lose nothing committed."""

from dataclasses import dataclass, field
from random import Random

import pytest

from penstock.base.types import LeaderEpoch, Offset
from penstock.partition.leader_epochs import LeaderEpochs

SCHEDULES = 2_000
STEPS = 60


@dataclass
class Replica:
    """A log in which each record is the epoch that it was written in, and its number there."""

    records: list[tuple[int, int]] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    @property
    def end(self) -> Offset:
        return Offset(len(self.records))

    def append(self, record: tuple[int, int]) -> None:
        self.epochs.assign(LeaderEpoch(record[0]), self.end)
        self.records.append(record)

    def truncate(self, end: int) -> None:
        del self.records[end:]
        self.epochs.truncate_end(self.end)

    def follow(self, leader: "Replica") -> int:
        """Ask, cut, ask again, until the histories agree; gives the number of questions."""
        for count in range(1, 100):
            if not self.records:
                return count
            found = leader.epochs.divergence(self.epochs.latest, self.end, leader.end)
            if found is None:
                return count
            cut = max(0, self.epochs.truncation(found, self.end))
            assert cut < self.end, "the same question would be asked for ever"
            self.truncate(cut)
        raise AssertionError("no end of questions")


def common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


@pytest.mark.parametrize("clean", [True, False])
def test_r16_divergent_tails_end_in_one_history(clean: bool) -> None:
    for seed in range(SCHEDULES):
        run(Random(seed), clean=clean)


def run(random: Random, *, clean: bool) -> None:
    """Elections among three; when `clean`, only of those who have what was committed by all in sync."""
    replicas = [Replica() for _ in range(3)]
    leader, epoch, number = 0, 0, 0
    in_sync = {0, 1, 2}
    committed: list[tuple[int, int]] = []
    for _ in range(STEPS):
        what = random.random()
        if what < 0.4:
            number += 1
            replicas[leader].append((epoch, number))
        elif what < 0.8:
            follower = random.choice([n for n in range(3) if n != leader])
            replicas[follower].follow(replicas[leader])
            same = common(replicas[follower].records, replicas[leader].records)
            assert same == len(replicas[follower].records), "not a prefix of the leader's log"
            for record in replicas[leader].records[same : same + random.randrange(4)]:
                replicas[follower].append(record)
            if len(replicas[follower].records) >= max(len(committed), epoch_start(replicas[leader], epoch)):
                in_sync.add(follower)
        elif what < 0.9:
            out = random.choice([n for n in range(3) if n != leader])
            in_sync.discard(out)
        else:
            leader = random.choice(sorted(in_sync) if clean else range(3))
            epoch += random.randrange(1, 3)
            in_sync = in_sync if clean else {leader}
        if clean:
            agreed = min((common(replicas[n].records, replicas[leader].records) for n in in_sync), default=0)
            assert replicas[leader].records[: len(committed)] == committed, "what was committed is gone"
            if agreed > len(committed):
                committed = replicas[leader].records[:agreed]


def epoch_start(leader: Replica, epoch: int) -> int:
    return next((start for known, start in leader.epochs.entries if known == epoch), len(leader.records))


def test_a_follower_steps_back_when_it_does_not_know_its_leaders_epoch() -> None:
    """KIP-279: two fast elections leave tails of epochs that the other never saw."""
    leader, follower = Replica(), Replica()
    for record in [(0, 1), (0, 2), (1, 3), (3, 6)]:
        leader.append(record)
    for record in [(0, 1), (0, 2), (2, 4), (2, 5)]:
        follower.append(record)
    assert leader.epochs.divergence(LeaderEpoch(2), Offset(4), leader.end) == (1, 3)
    assert follower.epochs.truncation((LeaderEpoch(1), Offset(3)), follower.end) == 2
    assert follower.follow(leader) == 2
    assert follower.records == [(0, 1), (0, 2)]
