"""Kafka's own DumpLogSegments reads the files that the broker wrote, batch by batch and index by index."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from .broker import Broker
from .client_kinds import CONFLUENT
from .exchange import Exchange
from .kafka_tools import DUMP_LOG_SEGMENTS, KafkaTools
from .missing_parts import skip_when_missing
from .topics import wait_until_in_sync

pytestmark = pytest.mark.stops_the_broker

FILES_PER_CALL_MAX = 60  # Keeps what one call prints to some tens of megabytes.

Place = tuple[Path, str]  # A log directory, and a topic in it.

# What the tool prints on its summary of problems; it exits with 0 even then.
COMPLAINTS = ("Mismatches in", "Found timestamp mismatch", "Found out of order timestamp", "Non-consecutive offsets")


@pytest.fixture(scope="module")
def data(broker: Broker, exchange: Exchange) -> list[Path]:
    """The log directories of brokers that have stopped, with at least confluent-kafka's topics in each."""
    exchange.run(CONFLUENT)
    if not broker.log_dirs:
        pytest.skip(
            "set PENSTOCK_COMPAT_DATA and PENSTOCK_COMPAT_PID, so that the broker can be stopped and its files read"
        )
    for topic in exchange.written_topics():
        wait_until_in_sync(broker.bootstrap, topic, broker.replication_factor)
    broker.stop()
    return list(broker.log_dirs)


@pytest.fixture(scope="module")
def kafka_tools(data: list[Path]) -> Iterator[KafkaTools]:
    """In a JVM of their own: admin clients that tools left behind in the other complain once the broker is gone."""
    with skip_when_missing("Kafka's command-line tools"):
        tools = KafkaTools("")
    yield tools
    tools.close()


def _files(data: list[Path], exchange: Exchange, suffix: str) -> list[Path]:
    topics = exchange.written_topics()
    found = (path for log_dir in data for path in log_dir.glob(f"*/*{suffix}"))
    return sorted(path for path in found if path.parent.name.rpartition("-")[0] in topics)


def _dumps(kafka_tools: KafkaTools, files: list[Path], *options: str) -> Iterator[str]:
    for first in range(0, len(files), FILES_PER_CALL_MAX):
        some = ",".join(str(path) for path in files[first : first + FILES_PER_CALL_MAX])
        result = kafka_tools.run_offline(DUMP_LOG_SEGMENTS, "--files", some, *options)
        assert result.exit_code == 0, result.err[-2000:]
        assert _without_first_gap(result.err) == ""
        for complaint in COMPLAINTS:
            assert complaint not in result.out, result.out[result.out.index(complaint) :][:2000]
        yield result.out


def _without_first_gap(complaints: str) -> str:
    """With --deep-iteration, Kafka 4.3 sees a gap before the first offset of every segment but a partition's first."""

    def drop(gap: re.Match[str]) -> str:
        return "" if int(Path(gap["log"]).stem) == int(gap["first"]) else gap[0]

    pattern = r"Non-consecutive offsets in (?P<log>.*)\n  -1 is followed by (?P<first>\d+)\n"
    return re.sub(pattern, drop, complaints)


@pytest.fixture(scope="module")
def batches(kafka_tools: KafkaTools, data: list[Path], exchange: Exchange) -> dict[Place, list[dict[str, str]]]:
    """By log directory and topic, what the tool says about each batch, by the tool's own names."""
    found: defaultdict[Place, list[dict[str, str]]] = defaultdict(list)
    place = Path(), ""
    for out in _dumps(kafka_tools, _files(data, exchange, ".log")):
        for line in out.splitlines():
            if line.startswith("Dumping "):
                partition = Path(line.removeprefix("Dumping ")).parent
                place = partition.parent, partition.name.rpartition("-")[0]
            elif line.startswith("baseOffset: "):
                found[place].append(dict(re.findall(r"(\w+): (\S+)", line)))
    return found


def test_every_batch_is_valid(batches: dict[Place, list[dict[str, str]]]) -> None:
    for place, of_topic in batches.items():
        for batch in of_topic:
            assert (batch["isvalid"], batch["magic"]) == ("true", "2"), f"{place}: {batch}"


def test_every_record_is_there(
    batches: dict[Place, list[dict[str, str]]], data: list[Path], exchange: Exchange
) -> None:
    """In each log directory: every broker has a replica."""
    counted = {place: sum(int(batch["count"]) for batch in of_topic) for place, of_topic in batches.items()}
    assert counted == {
        (log_dir, topic): corpus.record_count for log_dir in data for topic, corpus in exchange.written_topics().items()
    }


def test_batches_are_compressed_as_the_client_was_told(batches: dict[Place, list[dict[str, str]]]) -> None:
    """Clients leave out a codec without a word when they think the broker does not know it."""
    wrong = {}
    for (log_dir, topic), of_topic in batches.items():
        told, found = topic.rpartition("-")[2], {batch["compresscodec"] for batch in of_topic}
        # librdkafka sends a batch as it is when compressing would make it no smaller.
        if told not in found or not found <= {told, "none"}:
            wrong[log_dir, topic] = found
    assert not wrong


def test_every_record_can_be_decoded(kafka_tools: KafkaTools, data: list[Path], exchange: Exchange) -> None:
    for out in _dumps(kafka_tools, _files(data, exchange, ".log"), "--deep-iteration"):
        batch_counts = sum(int(count) for count in re.findall(r"^baseOffset: .*? count: (\d+)", out, re.MULTILINE))
        assert len(re.findall(r"^\| offset: \d+", out, re.MULTILINE)) == batch_counts > 0


def test_partitions_have_several_segments(data: list[Path], exchange: Exchange) -> None:
    """Else the tests around this one prove less than they say: segment.bytes is 1 MB, and each topic is larger."""
    per_partition = Counter(path.parent for path in _files(data, exchange, ".log"))
    assert max(per_partition.values()) >= 2
    assert {path.with_suffix("") for path in _files(data, exchange, ".log")} == {
        path.with_suffix("") for path in _files(data, exchange, ".index")
    }


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_points_at_its_batches(
    kafka_tools: KafkaTools, data: list[Path], exchange: Exchange, suffix: str
) -> None:
    entries = 0
    for out in _dumps(kafka_tools, _files(data, exchange, suffix)):
        entries += len(re.findall(r"^(?:offset|timestamp): \d+", out, re.MULTILINE))
    assert entries > 0
    for _ in _dumps(kafka_tools, _files(data, exchange, suffix), "--verify-index-only"):
        pass


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_passes_the_sanity_check(
    kafka_tools: KafkaTools, data: list[Path], exchange: Exchange, suffix: str
) -> None:
    files = _files(data, exchange, suffix)
    out = "".join(_dumps(kafka_tools, files, "--index-sanity-check"))
    for path in files:
        assert f"{path} passed sanity check." in out or (path.stat().st_size == 0 and f"{path} is empty." in out)
