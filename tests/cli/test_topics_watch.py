import json
import signal
import subprocess
import time
from collections.abc import Callable

from penstock.cli.live import Look
from penstock.cli.topics_watch import TopicSize, topics_frame

from .conftest import PENSTOCK, TIMEOUT_S, Result, on_a_terminal

Penstock = Callable[..., Result]


def test_json_lines_have_the_rate(penstock: Penstock, topic: str, address: str) -> None:
    penstock("produce", topic, "--partition", "0", stdin="a\nb\n")
    began = time.monotonic()
    process = subprocess.Popen(
        [*PENSTOCK, "topics", "watch", topic, "--interval", "0.5", "--json", "-b", address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert abs(first["timestamp"] / 1000 - time.time()) < TIMEOUT_S
    assert first["topics"] == [{"name": topic, "partitions": 2, "records": 2, "end_offsets": 2, "records_per_s": 0.0}]
    penstock("produce", topic, "--partition", "1", stdin="c\nd\ne\nf\ng\n")
    before, now = 2, first["topics"][0]
    while now["records_per_s"] or now["records"] < 7:
        now = json.loads(process.stdout.readline())["topics"][0]
        came, before = now["records"] - before, now["records"]
        # Five within half a second, but a look may be late, and the first of them may come before the others.
        assert came / (time.monotonic() - began) - 0.05 <= now["records_per_s"] <= came * 1000
    assert (now["records"], now["end_offsets"]) == (7, 7)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 0


def test_tables_when_piped_and_on_a_terminal(penstock: Penstock, topic: str, address: str) -> None:
    options = ("topics", "watch", "--interval", "0.1", "--count", "2")
    lines = penstock(*options).out.splitlines()
    assert [line.split() for line in lines].count([topic, "2", "0", "0", "0.0"]) == 2
    assert lines[1].split() == ["TOPIC", "PARTITIONS", "RECORDS", "END", "OFFSETS", "IN/S"]
    assert not any("__consumer_offsets" in line for line in lines)
    drawn = on_a_terminal(*options, "-b", address)
    assert drawn.count(b"END OFFSETS") == 4  # The first look, at once, two with rates, and the last one stays.


def test_records_that_were_deleted_do_not_count_but_their_offsets_do() -> None:
    size = TopicSize(starts={("t", 0): 30}, ends={("t", 0): 100})
    assert size.figures == {"partitions": 1, "records": 70, "end_offsets": 100}


def test_rate_is_of_partitions_seen_both_times() -> None:
    before = {"t": TopicSize({("t", 0): 0}, {("t", 0): 10}), "again": TopicSize({("again", 0): 0}, {("again", 0): 10})}
    now = {
        "t": TopicSize({("t", 0): 0, ("t", 1): 0}, {("t", 0): 14, ("t", 1): 1000}),
        "again": TopicSize({("again", 0): 0}, {("again", 0): 3}),  # Deleted and created meanwhile.
        "new": TopicSize({("new", 0): 0}, {("new", 0): 3}),
    }
    rates = {row[0]: row[-1] for row in topics_frame(Look(before, now, 2.0)).rows}
    assert rates == {"t": 2.0, "again": None, "new": None}


def test_topic_that_is_not_there(penstock: Penstock) -> None:
    failed = penstock("topics", "watch", "missing", "--count", "1")
    assert (failed.code, failed.out) == (1, "")
    assert "Cannot watch topic 'missing'" in failed.err
    assert "topics create missing" in failed.err
