from collections.abc import Callable

from .conftest import Result

Penstock = Callable[..., Result]
BROKER_CONFIGS = {"penstock.durability": "fsync"}  # What the broker was started with is not the default either.


def test_life_of_a_topic(penstock: Penstock) -> None:
    created = penstock("topics", "create", "life", "--partitions", "3", "--config", "retention.ms=86400000")
    assert (created.code, created.out) == (0, "Created topic life.\n")
    listed = penstock("topics", "list")
    assert ["life", "3", "1"] in [line.split() for line in listed.out.splitlines()]

    described = penstock("topics", "describe", "life", "--json").json
    assert described[0]["name"] == "life"
    assert [partition["partition"] for partition in described[0]["partitions"]] == [0, 1, 2]
    assert {partition["end_offset"] for partition in described[0]["partitions"]} == {0}
    assert described[0]["configs"] == {"retention.ms": "86400000", **BROKER_CONFIGS}

    altered = penstock(
        "topics", "alter", "life", "--partitions", "4", "--config", "max.message.bytes=2000",
        "--delete-config", "retention.ms",
    )  # fmt: skip
    assert altered.code == 0, altered.err
    described = penstock("topics", "describe", "life", "--json").json
    assert len(described[0]["partitions"]) == 4
    assert described[0]["configs"] == {"max.message.bytes": "2000", **BROKER_CONFIGS}

    assert penstock("topics", "delete", "life", "--yes").out == "Deleted topic life.\n"
    assert "life" not in penstock("topics", "list").out


def test_description_for_people(penstock: Penstock, topic: str) -> None:
    penstock("produce", topic, "--partition", "1", stdin="a\nb\n")
    lines = penstock("topics", "describe", topic).out.splitlines()
    assert lines[0] == f"{topic}: 2 partitions, replication factor 1"
    assert lines[2].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END"]
    assert lines[4].split() == ["1", "1", "1", "1", "0", "2"]


def test_weaker_durability_is_said_in_words(penstock: Penstock) -> None:
    assert penstock("topics", "create", "weak", "--config", "penstock.durability=os").code == 0
    assert "a power cut can lose the newest ones" in penstock("topics", "describe", "weak").out


def test_creating_twice(penstock: Penstock, topic: str) -> None:
    failed = penstock("topics", "create", topic)
    assert failed.code == 1
    assert f"Cannot create topic '{topic}'" in failed.err
    assert "--if-not-exists" in failed.err
    assert penstock("topics", "create", topic, "--json").error["code"] == "TOPIC_ALREADY_EXISTS"
    assert penstock("topics", "create", topic, "--if-not-exists", "--json").json == {"topic": topic, "created": False}


def test_refusals_say_why(penstock: Penstock, topic: str) -> None:
    missing = penstock("topics", "describe", "missing")
    assert (missing.code, "topics create missing" in missing.err) == (1, True)
    fewer = penstock("topics", "alter", topic, "--partitions", "1")
    assert (fewer.code, f"Cannot give '{topic}' 1 partition: " in fewer.err) == (1, True)
    unknown = penstock("topics", "alter", topic, "--config", "retention.sm=1")
    assert (unknown.code, "retention.sm" in unknown.err) == (1, True)
    replicas = penstock("topics", "create", "replicas", "--replication-factor", "3")
    assert (replicas.code, "more replicas than brokers" in replicas.err) == (1, True)
    name = penstock("topics", "create", "no/slash")
    assert (name.code, "no/slash" in name.err) == (1, True)


def test_deleting_asks_first(penstock: Penstock, topic: str) -> None:
    refused = penstock("topics", "delete", topic)
    assert (refused.code, "Add --yes" in refused.err) == (2, True)
    both = penstock("topics", "delete", topic, "missing", "--yes")
    assert both.code == 1
    assert f"Deleted topic {topic}." in both.out
    assert "Cannot delete topic 'missing'" in both.err
