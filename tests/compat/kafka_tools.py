"""Kafka's command-line tools, run for real, all in one JVM (clients/java/src/ToolServer.java)."""

import copy
import re
import struct
import subprocess
from collections.abc import Sequence
from typing import IO, NamedTuple

from .parts import java

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"


class ToolResult(NamedTuple):
    exit_code: int
    out: str
    err: str


class KafkaTools:
    def __init__(self, bootstrap: str, command: Sequence[str] | None = None) -> None:
        self._bootstrap = bootstrap
        command = java.program("ToolServer") if command is None else command
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, tool: str, *arguments: str) -> ToolResult:
        """A tool that talks to the broker."""
        return self.run_offline(tool, "--bootstrap-server", self._bootstrap, *arguments)

    def against(self, bootstrap: str) -> "KafkaTools":
        """The same tools in the same JVM, for another broker."""
        other = copy.copy(self)
        other._bootstrap = bootstrap
        return other

    def output(self, tool: str, *arguments: str) -> str:
        """What it printed, once it has ended well."""
        result = self.run(tool, *arguments)
        assert result.exit_code == 0, f"{tool} {' '.join(arguments)}: {result}"
        return result.out

    def run_offline(self, tool: str, *arguments: str) -> ToolResult:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write("\t".join([tool, *arguments]).encode() + b"\n")
        stdin.flush()
        (exit_code,) = struct.unpack(">i", _exactly(stdout, 4))
        return ToolResult(exit_code, _part(stdout), _part(stdout))

    def described(self, topic: str, *options: str) -> list[dict[str, str]]:
        """The lines of `kafka-topics --describe`, by field name: the topic's own, if not filtered out, is the first."""
        lines = self.output(TOPICS, "--describe", "--topic", topic, *options).splitlines()
        return [dict(re.findall(r"(\w+): ?([^\t]*)", line)) for line in lines if line.strip()]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _part(stream: IO[bytes]) -> str:
    (length,) = struct.unpack(">i", _exactly(stream, 4))
    return _exactly(stream, length).decode()


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise EOFError("the JVM with Kafka's tools has gone; its stderr is above")
    return data
