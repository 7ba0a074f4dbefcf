"""Who writes what, and who reads it: each client its own topics and confluent-kafka's, confluent-kafka everyone's.

A client's whole share runs in one go, when the first test asks for it, and is remembered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .client_kinds import CLIENT_KINDS, CONFLUENT, ClientKind
from .client_run import Job, Outcomes, run_jobs
from .comparison import assert_same_records
from .corpus import PARTITION_COUNT, Corpus, CorpusLimits, write_corpus
from .topics import create_topics

TOPIC_CONFIG = {
    "retention.ms": "-1",  # The corpus lies in the past.
    "segment.bytes": str(1024 * 1024),  # Kafka's smallest: a few segments per partition, for DumpLogSegments to read.
}


@dataclass
class ClientShare:
    """One client's jobs and their outcomes, and those of confluent-kafka with this client's topics."""

    by_client: Outcomes
    by_confluent: Outcomes


class Exchange:
    def __init__(self, *, bootstrap: str, directory: Path, topic_prefix: str, record_count: int) -> None:
        self.topic_prefix = topic_prefix
        self._bootstrap = bootstrap
        self._directory = directory
        self._record_count = record_count  # Per client, over all its codecs.
        self._corpora: dict[tuple[CorpusLimits, str], Corpus] = {}
        self._shares: dict[str, ClientShare | Exception] = {}

    def create_topics(self) -> None:
        create_topics(self._bootstrap, self.expected_topics(), TOPIC_CONFIG)

    def expected_topics(self) -> dict[str, int]:
        return {self.topic(kind, codec): PARTITION_COUNT for kind in CLIENT_KINDS.values() for codec in kind.codecs}

    def topic(self, kind: ClientKind, codec: str) -> str:
        return f"{self.topic_prefix}-{kind.name}-{codec}"

    def written_topics(self) -> dict[str, Corpus]:
        """Topics of the clients that have run, with what must be in them."""
        return {
            self.topic(CLIENT_KINDS[name], codec): self._corpus(CLIENT_KINDS[name], codec)
            for name, share in self._shares.items()
            if isinstance(share, ClientShare)
            for codec in CLIENT_KINDS[name].codecs
        }

    def assert_reads_back(self, reader: ClientKind, writer: ClientKind, codec: str) -> None:
        produce, consume = self._produce(writer, codec), self._consume(reader, writer, codec)
        self._share(writer).by_client.check(produce)
        if reader is CONFLUENT:
            self._share(writer).by_confluent.check(consume)
        else:
            self._share(reader).by_client.check(consume)
        expected = self._corpus(writer, codec).as_logged
        assert_same_records(consume.output, expected, with_timestamps=writer.sets_timestamps)

    def listed(self, kind: ClientKind) -> dict[str, int]:
        job = self._list(kind)
        self._share(kind).by_client.check(job)
        lines = (line.split("\t") for line in job.output.read_text().splitlines())
        return {topic: int(count) for topic, count in lines if topic.startswith(self.topic_prefix)}

    def run(self, kind: ClientKind) -> None:
        self._share(kind)

    def _share(self, kind: ClientKind) -> ClientShare:
        if kind.name not in self._shares:
            try:
                self._shares[kind.name] = self._run(kind)
            except Exception as error:  # PartMissing above all: found out once, told to every test that asks.
                self._shares[kind.name] = error
        share = self._shares[kind.name]
        if isinstance(share, Exception):
            raise share
        return share

    def _run(self, kind: ClientKind) -> ClientShare:
        produce = [self._produce(kind, codec) for codec in kind.codecs]
        consume = [self._consume(kind, kind, codec) for codec in kind.codecs]
        if kind is CONFLUENT:
            outcomes = self._run_jobs(kind, [*produce, *consume, self._list(kind)], "own")
            return ClientShare(outcomes, outcomes)
        self._share(CONFLUENT)
        consume += [self._consume(kind, CONFLUENT, codec) for codec in kind.codecs]
        outcomes = self._run_jobs(kind, [*produce, *consume, self._list(kind)], "own")
        consume_by_confluent = [self._consume(CONFLUENT, kind, codec) for codec in kind.codecs]
        return ClientShare(outcomes, self._run_jobs(CONFLUENT, consume_by_confluent, f"reads-{kind.name}"))

    def _run_jobs(self, kind: ClientKind, jobs: Sequence[Job], name: str) -> Outcomes:
        return run_jobs(kind, self._bootstrap, jobs, self._directory / f"{kind.name}-{name}.jobs")

    def _produce(self, kind: ClientKind, codec: str) -> Job:
        return Job("produce", (self.topic(kind, codec), codec, str(self._corpus(kind, codec).to_send)))

    def _consume(self, reader: ClientKind, writer: ClientKind, codec: str) -> Job:
        output = self._directory / f"{reader.name}-read-{writer.name}-{codec}"
        return Job("consume", (self.topic(writer, codec), str(PARTITION_COUNT), str(output)))

    def _list(self, kind: ClientKind) -> Job:
        return Job("list", (str(self._directory / f"{kind.name}-listed"),))

    def _corpus(self, kind: ClientKind, codec: str) -> Corpus:
        key = (kind.limits, codec)
        if key not in self._corpora:
            path = self._directory / f"corpus-{len(self._corpora)}-{codec}"
            count = self._record_count // len(kind.codecs)
            self._corpora[key] = write_corpus(path, codec=codec, record_count=count, limits=kind.limits)
        return self._corpora[key]
