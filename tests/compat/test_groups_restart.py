"""The group's broker goes and comes back under it: members carry on, and nothing that was committed comes again."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from .broker import Broker, BrokerCluster, ExternalBroker
from .committed_offsets import committed, coordinator_address
from .conftest import GROUP_CONFIG, NewCluster
from .group_member import CONFLUENT, CONFLUENT_848, JAVA, JAVA_848, KAFKA_PYTHON, GroupMember, wait_until
from .group_story import Group, open_group
from .missing_parts import skip_when_missing

COMMITS_BETWEEN = 5  # Of each member, before and after the broker was away.


@pytest.fixture
def cluster(broker: Broker, new_cluster: NewCluster) -> Iterator[BrokerCluster]:
    if isinstance(broker, ExternalBroker):
        pytest.skip("needs a broker that can be started again")
    cluster = new_cluster(GROUP_CONFIG)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def _wait_for_commits(group: Group, members: list[GroupMember]) -> None:
    """Until each of them has committed some more."""
    before = {member.name: len(member.told("committed")) for member in members}

    def is_done() -> bool:
        return all(len(member.told("committed")) >= before[member.name] + COMMITS_BETWEEN for member in members)

    wait_until(is_done, lambda: "; ".join(member.describe() for member in group.members))


def _told_committed(members: list[GroupMember]) -> dict[int, int]:
    told: defaultdict[int, int] = defaultdict(int)
    for member in members:
        for event in member.told("committed"):
            for partition, offset in event["offsets"].items():
                told[int(partition)] = max(told[int(partition)], offset)
    return told


def _check_kept(group: Group, cluster: BrokerCluster, promised: dict[int, int]) -> None:
    group.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # The old one waits before it connects.
    kept = committed(group.admin, group.name)
    lost = {partition: (offset, kept.get(partition)) for partition, offset in promised.items()
            if kept.get(partition, -1) < offset}  # fmt: skip
    assert not lost, f"committed offsets were lost, (told, kept): {lost}"


KINDS = {"classic": (CONFLUENT, JAVA, KAFKA_PYTHON), "848": (CONFLUENT_848, JAVA_848), "both": (JAVA, CONFLUENT_848)}


@pytest.mark.parametrize("protocol", KINDS)
@pytest.mark.parametrize("ending", ["SIGTERM", "SIGKILL"])
def test_members_carry_on(cluster: BrokerCluster, tmp_path: Path, ending: str, protocol: str) -> None:
    with (
        skip_when_missing("consumer group over a restart"),
        open_group(cluster.bootstrap, tmp_path / "group", f"restart-{ending}", "range") as group,
    ):
        group.writer.start()
        members = [group.join(kind) for kind in KINDS[protocol]]
        group.wait_until_shared_by(*members)
        _wait_for_commits(group, members)
        for _ in range(2):
            process = cluster.at(coordinator_address(cluster.bootstrap, group.name))
            if ending == "SIGTERM":
                process.stop()
            else:
                process.kill()
            promised = _told_committed(members)
            if len(cluster.brokers) > 1:  # The others take over, and need not wait for it.
                _check_kept(group, cluster, promised)
                _wait_for_commits(group, members)
                promised = _told_committed(members)
            process.start()
            _check_kept(group, cluster, promised)
            _wait_for_commits(group, members)
        group.writer.stop()
        group.wait_until_read()
        for member in members:
            member.leave()
        group.check()
    cluster.stop()
