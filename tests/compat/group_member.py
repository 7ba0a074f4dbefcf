"""One member of a consumer group: a client program of its own, what it tells, and what is done to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .parts import golang, java, node
from .parts.cache import CLIENTS

SESSION_MS = 3_000  # Long enough for a JVM on a busy machine, short enough to wait for.
WAIT_S_MAX = 150  # For what takes a session or a start at the most; only a failure waits so long.
EXIT_S_MAX = 60

Event = Mapping[str, Any]


@dataclass(frozen=True)
class MemberKind:
    name: str
    command: Callable[[], Sequence[str]]  # Fetches and builds what it needs, or raises PartMissing.
    assignor: str | None = None  # None: the group's. "server-…": the new protocol (KIP-848), with that assignor.
    is_by_pattern: bool = False  # It subscribes with a regular expression that the broker resolves.


def _python(script: str) -> Sequence[str]:
    return (sys.executable, str(CLIENTS / "python" / script))


CONFLUENT = MemberKind("confluent-kafka", lambda: _python("confluent_member.py"))
KAFKA_PYTHON = MemberKind("kafka-python", lambda: _python("kafka_python_member.py"))
AIOKAFKA = MemberKind("aiokafka", lambda: _python("aiokafka_member.py"))
KAFKAJS = MemberKind("kafkajs", lambda: node.kafkajs_program("member.js"))
FRANZ_GO = MemberKind("franz-go", lambda: (*golang.franz_go_program(), "member"))
JAVA = MemberKind("java", lambda: java.program("GroupMember"))

CONFLUENT_848 = MemberKind("confluent-kafka-848", CONFLUENT.command, "server-uniform")
JAVA_848 = MemberKind("java-848", JAVA.command, "server-uniform")
CONFLUENT_PATTERN = MemberKind("confluent-kafka-pattern", CONFLUENT.command, "server-uniform", is_by_pattern=True)
JAVA_PATTERN = MemberKind("java-pattern", JAVA.command, "server-uniform", is_by_pattern=True)
JAVA_848_RANGE = MemberKind("java-848-range", JAVA.command, "server-range")


def wait_until(condition: Callable[[], bool], what: Callable[[], str], timeout_s: float = WAIT_S_MAX) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what()}"
        time.sleep(0.05)


class GroupMember:
    def __init__(self, kind: MemberKind, settings: Sequence[str], log: Path, name: str) -> None:
        self.name = name
        self._log = log
        self._read_to = 0
        self._events: list[Event] = []
        self._stderr = log.with_suffix(".stderr")
        with log.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*kind.command(), *settings], stdin=subprocess.PIPE, stdout=stdout, stderr=stderr
            )

    # What it tells

    def events(self) -> list[Event]:
        with self._log.open("rb") as log:
            log.seek(self._read_to)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]  # The last line of a process that was killed may be torn.
        self._read_to += len(whole)
        self._events += [json.loads(line) for line in whole.splitlines()]
        return self._events

    def told(self, event: str) -> list[Event]:
        return [one for one in self.events() if one["event"] == event]

    def owned(self) -> set[int]:
        owned: set[int] = set()
        for event in self.events():
            if event["event"] == "assigned":
                owned = set(event["partitions"])
            elif event["event"] == "revoked":
                owned -= set(event["partitions"])
            elif event["event"] == "left":
                owned = set()
        return owned

    def wait_for(self, event: str, count: int = 1) -> Event:
        wait_until(lambda: len(self.told(event)) >= count or self.has_ended(), lambda: f"{event} by {self.describe()}")
        told = self.told(event)
        assert len(told) >= count, f"ended before it told of {event}: {self.describe()}"
        return told[count - 1]

    def describe(self) -> str:
        stderr = self._stderr.read_text(errors="replace")[-1500:]
        short = [str(event)[:200] for event in self.events()[-6:]]
        return f"{self.name} owns {self.owned()}, exit code {self._process.poll()}, last told {short}, stderr {stderr}"

    # What is done to it

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def leave(self) -> None:
        """Say goodbye to the group, and end."""
        self.tell("leave")
        self.wait_for("left")
        assert self._process.wait(EXIT_S_MAX) == 0, self.describe()

    def kill(self) -> None:
        if not self.has_ended():
            self._process.kill()
            self._process.wait(EXIT_S_MAX)

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        return self._process.poll() is not None
