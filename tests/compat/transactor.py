"""A client program that writes in transactions, and reads what was written so: questions and answers."""

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .parts import golang, java
from .parts.cache import CLIENTS

ANSWER_S_MAX = 150  # Only a failure takes so long.


@dataclass(frozen=True)
class TransactorKind:
    name: str
    command: Callable[[], Sequence[str]]  # Fetches and builds what it needs, or raises PartMissing.
    transaction_version: int  # 2: every transaction has an epoch of its own (KIP-890).


def _python(script: str) -> Sequence[str]:
    return (sys.executable, str(CLIENTS / "python" / script))


KINDS = [
    TransactorKind("confluent-kafka", lambda: _python("confluent_transactor.py"), 1),
    TransactorKind("kafka-python", lambda: _python("kafka_python_transactor.py"), 1),
    TransactorKind("aiokafka", lambda: _python("aiokafka_transactor.py"), 1),
    TransactorKind("franz-go", lambda: (*golang.franz_go_program(), "transactor"), 2),
    TransactorKind("java", lambda: java.program("Transactor"), 2),
    TransactorKind("java-3.9", lambda: java.program("Transactor", pom=java.OLD_POM), 1),
]


class Refused(Exception):
    """The client's own words about what went wrong."""


class Transactor:
    """Use as a context manager."""

    def __init__(self, kind: TransactorKind, bootstrap: str, directory: Path) -> None:
        self._stderr = directory / f"{kind.name}-{id(self)}.stderr"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*kind.command(), bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.decode().strip())
        self._answers.put("FAILED: the program has ended")

    def ask(self, *words: str | int) -> str:
        self.tell(*words)
        return self.answer()

    def tell(self, *words: str | int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        try:
            answer = self._answers.get(timeout=ANSWER_S_MAX)
        except queue.Empty:
            raise AssertionError(f"no answer: {self._stderr.read_text(errors='replace')[-2000:]}") from None
        if not answer.startswith("ok"):
            raise Refused(f"{answer}\n{self._stderr.read_text(errors='replace')[-2000:]}")
        return answer.removeprefix("ok").strip()

    def write(self, topic: str, *values: str, partition: int = 0, ends_with: str = "commit") -> None:
        """One transaction."""
        self.ask("begin")
        for value in values:
            self.ask("send", topic, partition, value)
        self.ask(ends_with)

    def read(self, isolation: str, topic: str, partition: int = 0) -> list[str]:
        return self.ask("read", isolation, topic, partition).split(",")

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> "Transactor":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        self._thread.join(60)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
