"""Groups of the new protocol (KIP-848) under Kafka's tools: what they show, and whether they can read our records."""

import json
import re
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from .broker import Broker
from .committed_offsets import coordinator_address
from .group_member import CONFLUENT, CONFLUENT_848, CONFLUENT_PATTERN
from .group_story import PARTITION_COUNT, Group, open_group
from .kafka_tools import CONSUMER_GROUPS, DUMP_LOG_SEGMENTS, KafkaTools

# A member of each protocol, and one that subscribes by regular expression.
KINDS = (CONFLUENT, CONFLUENT_848, CONFLUENT_PATTERN)


@pytest.fixture(scope="module")
def tools(kafka_tools: KafkaTools, group_broker: Broker) -> KafkaTools:
    return kafka_tools.against(group_broker.bootstrap)


@pytest.fixture(scope="module")
def live(group_broker: Broker, topic_prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Three members share six partitions, and have committed all that there is."""
    directory = tmp_path_factory.mktemp("live-848") / "group"
    with open_group(group_broker.bootstrap, directory, f"{topic_prefix}-live-848", "range") as group:
        group.writer.write(PARTITION_COUNT * 10)
        group.writer.flush()
        group.wait_until_shared_by(*(group.join(kind) for kind in KINDS))
        group.wait_until_read()
        yield group


def _line(text: str, word: str) -> str:
    (line,) = [line for line in text.splitlines() if word in line.split()]
    return line


def test_it_is_listed_with_its_type_and_state(tools: KafkaTools, live: Group) -> None:
    assert re.search(rf"{live.name}\s+Consumer", tools.output(CONSUMER_GROUPS, "--list", "--type"))
    assert live.name in tools.output(CONSUMER_GROUPS, "--list", "--type", "consumer")
    assert live.name not in tools.output(CONSUMER_GROUPS, "--list", "--type", "classic")
    assert live.name in tools.output(CONSUMER_GROUPS, "--list", "--state", "Stable")


def test_describe_shows_the_state_and_the_epochs(tools: KafkaTools, live: Group, group_broker: Broker) -> None:
    out = tools.output(CONSUMER_GROUPS, "--describe", "--group", live.name, "--state", "--verbose")
    coordinator = re.escape(coordinator_address(group_broker.bootstrap, live.name))
    pattern = rf"{live.name}\s+{coordinator}\s+\(\d+\)\s+uniform\s+Stable\s+(\d+)\s+(\d+)\s+3\s"
    found = re.search(pattern, out)
    assert found is not None and found[1] == found[2], out


def test_describe_shows_the_members(tools: KafkaTools, live: Group) -> None:
    out = tools.output(CONSUMER_GROUPS, "--describe", "--group", live.name, "--members", "--verbose")
    for member in live.members:
        line = _line(out, member.name)
        partitions = ",".join(str(partition) for partition in sorted(member.owned()))
        assert f"{live.topic}:{partitions}" in line, out


def test_describe_shows_who_reads_what(tools: KafkaTools, live: Group) -> None:
    out = tools.output(CONSUMER_GROUPS, "--describe", "--group", live.name)
    for member in live.members:
        for partition in member.owned():
            (line,) = [line for line in out.splitlines() if line.split()[1:3] == [live.topic, str(partition)]]
            assert member.name in line.split(), out


def test_it_is_not_deleted_while_it_has_members(tools: KafkaTools, live: Group) -> None:
    deleted = tools.run(CONSUMER_GROUPS, "--group", live.name, "--delete")
    assert "GroupNotEmptyException" in deleted.out + deleted.err


def test_kafka_reads_our_records(kafka_tools: KafkaTools, live: Group, group_broker: Broker) -> None:
    """Of every type, each with what we meant: Kafka's own deserializers print them."""
    if not group_broker.log_dirs:
        pytest.skip("needs the broker's log directory")
    keys: dict[int, list[dict[str, str]]] = {}
    values: dict[int, list[dict[str, object]]] = {}
    for log in sorted(log for at in group_broker.log_dirs for log in at.glob("__consumer_offsets-*/*.log")):
        out = kafka_tools.run_offline(DUMP_LOG_SEGMENTS, "--offsets-decoder", "--files", str(log)).out
        for key, value in re.findall(r"key: (\{.*?\}\}) payload: (\{.*\})$", out, re.MULTILINE):
            kind, data = json.loads(key), json.loads(value)
            if kind["data"].get("groupId") == live.name:
                keys.setdefault(int(kind["type"]), []).append(kind["data"])
                values.setdefault(int(kind["type"]), []).append(data["data"])
    assert keys.keys() >= {3, 4, 5, 6, 7, 8, 16}
    clients = {value["clientId"] for value in values[5]}
    assert clients == {member.name for member in live.members}
    classic = [value for value in values[5] if value.get("classicMemberMetadata")]
    assert classic and {value["clientId"] for value in classic} == {live.members[0].name}
    assert values[16][-1]["topics"] == [live.topic]
    assert values[4][-1]["topics"][0]["numPartitions"] == PARTITION_COUNT  # type: ignore[index]
    ids = {key["memberId"] for key in keys[8]}
    assert ids >= {member.told("assigned")[-1]["member"] for member in live.members}


def test_it_can_be_deleted_when_it_is_empty(tools: KafkaTools, live: Group) -> None:
    for member in live.members:
        member.leave()
    admin = AdminClient({"bootstrap.servers": live.bootstrap})
    assert "successful" in tools.output(CONSUMER_GROUPS, "--group", live.name, "--delete")
    assert live.name not in {group.group_id for group in admin.list_consumer_groups().result().valid}
