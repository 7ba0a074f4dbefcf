"""The command line that the Python client programs share: `program BOOTSTRAP JOB_FILE`.

A job file has one job per line, tab-separated:

    produce  TOPIC  CODEC  RECORD_FILE          codec: none gzip snappy lz4 zstd
    consume  TOPIC  PARTITION_COUNT  RECORD_FILE
    list     TEXT_FILE                          one "topic<TAB>partition count" line per topic
    number   TOPIC  COUNT  PARTITION_COUNT      record i to partition i % PARTITION_COUNT, its value "i" and blanks up
                                                to 1,000 bytes, idempotent (not all clients)

and the program prints one line per job, "ok" or "FAILED reason", and goes on with the next one.
Many jobs share one process because starting a client costs more than most of its work.
"""

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from record_file import Record, in_log_order, read_records, write_records

IDLE_S_MAX = 60  # A consumer that gets nothing for this long gives up: the broker holds something back.


class Client(Protocol):
    def produce(self, topic: str, codec: str, records: list[Record]) -> None:
        """Return when the broker has acknowledged every record, in order within each partition."""

    def consume(self, topic: str, partition_count: int) -> Iterable[Record]:
        """Every record from the first offset to the end of each partition as it is now."""

    def topics(self) -> dict[str, int]:
        """Partition count by topic."""

    def number(self, topic: str, partition_count: int, values: list[bytes]) -> None:
        """Write idempotently, everything else at the client's defaults, and return when all is acknowledged."""


def run(client: Client) -> None:
    for line in Path(sys.argv[2]).read_text().splitlines():
        try:
            _run_job(client, *line.split("\t"))
        except Exception as error:  # A job that fails must not hide what the others would have shown.
            traceback.print_exc()
            print("FAILED", type(error).__name__, " ".join(str(error).split()), flush=True)
        else:
            print("ok", flush=True)


def bootstrap() -> str:
    return sys.argv[1]


def _run_job(client: Client, verb: str, *arguments: str) -> None:
    if verb == "produce":
        topic, codec, path = arguments
        client.produce(topic, codec, list(read_records(Path(path))))
    elif verb == "consume":
        topic, partition_count, path = arguments
        write_records(Path(path), in_log_order(client.consume(topic, int(partition_count))))
    elif verb == "list":
        lines = [f"{topic}\t{count}\n" for topic, count in sorted(client.topics().items())]
        Path(arguments[0]).write_text("".join(lines))
    elif verb == "number":
        topic, count, partition_count = arguments
        client.number(topic, int(partition_count), [b"%-1000d" % i for i in range(int(count))])
    else:
        raise ValueError(f"no such job: {verb}")
