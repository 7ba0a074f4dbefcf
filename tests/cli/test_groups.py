"""Consumer groups on the command line, with real consumers in them."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from .conftest import PENSTOCK, TIMEOUT_S, Result, on_a_terminal, run_penstock

Penstock = Callable[..., Result]
T0 = 1_700_000_000_000
RECORDS = 10  # In each of the topic's two partitions, one a second from T0 on.


@pytest.fixture
def filled(penstock: Penstock, topic: str) -> str:
    """The topic, with records in it."""
    for partition in ("0", "1"):
        lines = "".join(f'{{"value": "{n}", "timestamp": {T0 + 1000 * n}}}\n' for n in range(RECORDS))
        assert penstock("produce", topic, "--partition", partition, "--format", "json", stdin=lines).code == 0
    return topic


@pytest.fixture
def idle(address: str, filled: str) -> str:
    """A group of the topic's name without members, which has read 8 and 3 of the records of its partitions."""
    _commit(address, filled, {0: 8, 1: 3})
    return filled


@pytest.fixture
def live(address: str, filled: str) -> Iterator[str]:
    """A group of the topic's name with one member, which has committed 4 in partition 0."""
    member = _consumer(address, filled)
    member.subscribe([filled])
    deadline = time.monotonic() + TIMEOUT_S
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(0.1)
    member.commit(offsets=[TopicPartition(filled, 0, 4)], asynchronous=False)
    yield filled
    member.close()


def _consumer(address: str, group: str) -> Consumer:
    settings = {"bootstrap.servers": address, "group.id": group, "client.id": "reader", "enable.auto.commit": False}
    return Consumer(settings)


def _commit(address: str, group: str, offsets: dict[int, int], topic: str | None = None) -> None:
    consumer = _consumer(address, group)
    positions = [TopicPartition(topic or group, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()


def _committed(penstock: Penstock, group: str) -> dict[int, int]:
    found = penstock("groups", "lag", group, "--json").json
    partitions = found[0]["partitions"]
    return {p["partition"]: p["committed"] for p in partitions if p["committed"] is not None}


def test_list(penstock: Penstock, live: str, address: str) -> None:
    _commit(address, f"{live}-idle", {0: 1}, topic=live)
    rows = [line.split() for line in penstock("groups", "list").out.splitlines()]
    assert rows[0] == ["GROUP", "STATE", "TYPE", "MEMBERS"]
    assert [live, "Stable", "classic", "1"] in rows
    assert [f"{live}-idle", "Empty", "classic", "0"] in rows
    empty = {group["group"]: group for group in penstock("groups", "list", "--state", "empty", "--json").json}
    assert empty[f"{live}-idle"]["state"] == "Empty"
    assert live not in empty
    assert penstock("groups", "list", "--state", "completingrebalance").out == "No group is CompletingRebalance.\n"


def test_describe_shows_members_offsets_and_lag(penstock: Penstock, live: str, address: str) -> None:
    described = penstock("groups", "describe", live, "--json").json
    (member,) = described["members"]
    assert (described["state"], described["type"], described["assignor"]) == ("Stable", "classic", "range")
    host, _, port = address.rpartition(":")
    assert described["coordinator"] == {"id": 1, "host": host, "port": int(port)}
    assert (member["client"], member["host"]) == ("reader", "/127.0.0.1")
    assert member["partitions"] == [{"topic": live, "partition": number} for number in (0, 1)]
    # As Kafka's tool: where nothing was committed, there is no lag to speak of.
    common = {"topic": live, "end": RECORDS, "member": member["member"]}
    assert described["partitions"] == [
        {**common, "partition": 0, "committed": 4, "lag": 6},
        {**common, "partition": 1, "committed": None, "lag": None},
    ]
    assert described["total_lag"] == 6

    lines = penstock("groups", "describe", live).out.splitlines()
    assert lines[:3] == [
        f"{live}: Stable, classic protocol, assignor range",
        f"Coordinator: broker 1 at {address}",
        "1 member, 6 records behind",
    ]
    assert lines[5].split() == [member["member"], "reader", "/127.0.0.1", f"{live}:0,1"]
    assert lines[8].split() == [live, "0", "4", "10", "6", member["member"]]
    assert lines[9].split() == [live, "1", "-", "10", "-", member["member"]]


def test_describe_without_members(penstock: Penstock, idle: str) -> None:
    lines = penstock("groups", "describe", idle).out.splitlines()
    assert lines[0] == f"{idle}: Empty, classic protocol"
    assert lines[2] == "0 members, 9 records behind"
    assert lines[5].split() == [idle, "0", "8", "10", "2", "-"]


@pytest.mark.parametrize("command", ["describe", "lag"])
def test_group_that_is_not_there(penstock: Penstock, command: str) -> None:
    failed = penstock("groups", command, "nobody")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.splitlines()[0] == "error: There is no group 'nobody'."
    assert "groups list" in failed.err
    assert penstock("groups", command, "nobody", "--json").error["code"] == "GROUP_ID_NOT_FOUND"


def test_lag_per_partition_and_in_all(penstock: Penstock, idle: str) -> None:
    rows = [line.split() for line in penstock("groups", "lag", idle).out.splitlines()]
    assert rows == [
        ["GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG"],
        [idle, idle, "0", "8", "10", "2"],
        [idle, idle, "1", "3", "10", "7"],
        [idle, "total", "-", "-", "-", "9"],
    ]
    every = {group["group"]: group["total_lag"] for group in penstock("groups", "lag", "--json").json}
    assert every[idle] == 9


def test_lag_shows_what_members_have_been_given_but_not_committed(penstock: Penstock, live: str) -> None:
    rows = [line.split() for line in penstock("groups", "lag", live).out.splitlines()]
    assert rows[1:] == [
        [live, live, "0", "4", "10", "6"],
        [live, live, "1", "-", "10", "-"],
        [live, "total", "-", "-", "-", "6"],
    ]


def test_lag_in_a_topic_that_was_deleted(penstock: Penstock, idle: str, address: str) -> None:
    """Kafka forgets these offsets with the topic; a broker that has not yet must not fail the command."""
    assert penstock("topics", "create", f"{idle}-gone").code == 0
    _commit(address, idle, {0: 5}, topic=f"{idle}-gone")
    assert penstock("topics", "delete", f"{idle}-gone", "--yes").code == 0
    found = penstock("groups", "lag", idle, "--json")
    assert found.code == 0, found.err
    assert found.json[0]["total_lag"] == 9
    assert f"{idle}-gone" not in penstock("topics", "list").out  # Asking did not create it again.


def test_watched_lag_has_rate_and_time_left(penstock: Penstock, idle: str, address: str) -> None:
    began = time.monotonic()
    process = subprocess.Popen(
        [*PENSTOCK, "groups", "lag", idle, "--watch", "--interval", "0.5", "--json", "-b", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())["groups"][0]
    assert (first["total_lag"], first["lag_per_s"], first["catch_up_s"]) == (9, 0.0, None)
    _commit(address, idle, {1: 8})
    deadline = time.monotonic() + TIMEOUT_S
    while (later := json.loads(process.stdout.readline())["groups"][0])["total_lag"] != 4:
        assert time.monotonic() < deadline
    # Five records in half a second, or in whatever time the looks took; both figures are rounded.
    rate = -later["lag_per_s"]
    assert 5 / (time.monotonic() - began) - 0.05 <= rate
    assert 4 / (rate + 0.05) - 0.05 <= later["catch_up_s"] <= 4 / (rate - 0.05) + 0.05
    assert [p["lag"] for p in later["partitions"]] == [2, 2]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, "")


def test_watched_lag_as_tables(penstock: Penstock, idle: str, address: str) -> None:
    options = ("groups", "lag", idle, "--watch", "--interval", "0.1", "--count", "2")
    plain = penstock(*options).out
    assert plain.count("CAUGHT UP IN") == 2
    assert plain.splitlines()[4].split() == [idle, "total", "-", "-", "-", "9", "0.0", "never"]
    drawn = on_a_terminal(*options, "-b", address)
    assert drawn.count(b"CAUGHT UP IN") == 4  # The first look, at once, two with rates, and the last one stays.
    assert b"\x1b[" in drawn


def test_watched_lag_of_more_partitions_than_lines(penstock: Penstock, address: str) -> None:
    assert penstock("topics", "create", "wide", "--partitions", "30").code == 0
    _commit(address, "wide", dict.fromkeys(range(30), 0))
    drawn = on_a_terminal("groups", "lag", "wide", "--watch", "-i", "0.1", "--count", "1", "-b", address)
    assert b"totals only" in drawn
    assert b"wide    total" in drawn and b"wide    wide" not in drawn


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to", "earliest"], {0: 0, 1: 0}),
        (["--to", "latest"], {0: 10, 1: 10}),
        (["--to", "5"], {0: 5, 1: 5}),
        (["--to", "-1"], {0: 9, 1: 9}),
        (["--to", "2023-11-14T22:13:23.500Z"], {0: 4, 1: 4}),
        (["--to", str(T0 + 99_000)], {0: 10, 1: 10}),
        (["--shift", "-2"], {0: 6, 1: 1}),
        (["--shift", "1"], {0: 9, 1: 4}),
    ],
)
def test_reset(penstock: Penstock, idle: str, target: list[str], expected: dict[int, int]) -> None:
    done = penstock("groups", "reset", idle, "--topic", idle, *target, "--yes")
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["TOPIC", "PARTITION", "FROM", "TO"]
    assert rows[1:3] == [[idle, "0", "8", str(expected[0])], [idle, "1", "3", str(expected[1])]]
    assert done.out.endswith(f"\nMoved {idle} in 2 partitions.\n")
    assert _committed(penstock, idle) == expected


def test_reset_of_some_partitions(penstock: Penstock, idle: str) -> None:
    done = penstock("groups", "reset", idle, "--topic", f"{idle}:1", "--to", "earliest", "--yes", "--json")
    assert done.json == {
        "group": idle,
        "reset": True,
        "partitions": [{"topic": idle, "partition": 1, "committed": 3, "to": 0, "clamped_from": None}],
    }
    assert _committed(penstock, idle) == {0: 8, 1: 0}


def test_reset_beyond_the_ends_is_clamped_and_said(penstock: Penstock, idle: str) -> None:
    done = penstock("groups", "reset", idle, "--topic", idle, "--shift", "-5", "--yes")
    assert f"{idle}:1 does not reach -2: 0 is the nearest." in done.out
    assert f"{idle}:0 does not" not in done.out
    assert _committed(penstock, idle) == {0: 3, 1: 0}
    done = penstock("groups", "reset", idle, "--topic", idle, "--to", "99", "--yes")
    assert f"{idle}:0 does not reach 99: 10 is the nearest." in done.out
    assert _committed(penstock, idle) == {0: 10, 1: 10}


def test_reset_asks_first_and_dry_run_changes_nothing(penstock: Penstock, idle: str) -> None:
    asked = penstock("groups", "reset", idle, "--topic", idle, "--to", "earliest")
    assert (asked.code, "Add --yes" in asked.err) == (2, True)
    dry = penstock("groups", "reset", idle, "--topic", idle, "--to", "earliest", "--dry-run")
    assert (dry.code, dry.out.splitlines()[-1]) == (0, "Nothing was changed.")
    assert penstock("groups", "reset", idle, "--topic", idle, "--to", "1", "--dry-run", "--json").json["reset"] is False
    assert _committed(penstock, idle) == {0: 8, 1: 3}


def test_reset_and_delete_are_refused_while_somebody_reads(penstock: Penstock, live: str) -> None:
    refused = penstock("groups", "reset", live, "--topic", live, "--to", "earliest", "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert "it is Stable with 1 member" in refused.err
    assert f"groups describe {live}" in refused.err
    deleted = penstock("groups", "delete", live, "--yes", "--json")
    assert deleted.code == 1
    assert deleted.error["code"] == "NON_EMPTY_GROUP"
    assert f"groups describe {live}" in deleted.error["hint"]
    assert _committed(penstock, live) == {0: 4}


def test_reset_makes_a_group_that_is_not_there(penstock: Penstock, filled: str) -> None:
    new = f"{filled}-new"
    shift = penstock("groups", "reset", new, "--topic", filled, "--shift", "1", "--yes")
    assert (shift.code, "has committed nothing in partition 0" in shift.err) == (1, True)
    done = penstock("groups", "reset", new, "--topic", filled, "--to", "latest", "--yes")
    assert done.out.startswith(f"There is no group '{new}' yet: this makes it.\n")
    assert _committed(penstock, new) == {0: 10, 1: 10}


def test_reset_in_a_topic_or_partition_that_is_not_there(penstock: Penstock, idle: str) -> None:
    missing = penstock("groups", "reset", idle, "--topic", "missing", "--to", "latest", "--yes")
    assert (missing.code, "There is no topic 'missing'" in missing.err) == (1, True)
    assert "missing" not in penstock("topics", "list").out.split()
    partition = penstock("groups", "reset", idle, "--topic", f"{idle}:7", "--to", "latest", "--yes")
    assert (partition.code, "has no partition 7" in partition.err) == (1, True)


def test_delete(penstock: Penstock, idle: str) -> None:
    asked = penstock("groups", "delete", idle)
    assert (asked.code, "Add --yes" in asked.err) == (2, True)
    both = penstock("groups", "delete", idle, "nobody", "--yes")
    assert (both.code, both.out) == (1, f"Deleted group {idle}.\n")
    assert "Cannot delete group 'nobody'" in both.err
    assert "groups list" in both.err
    assert idle not in {group["group"] for group in penstock("groups", "list", "--json").json}


def test_ids_are_completed(idle: str, address: str) -> None:
    line = f"penstock groups describe {idle[:-1]}"
    environment = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": "3",
        "PENSTOCK_BOOTSTRAP_SERVER": address,
    }
    assert run_penstock(environment=environment).out.split() == [idle]
