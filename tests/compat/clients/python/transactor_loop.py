"""A transactional producer and a reader of what it wrote: `program BOOTSTRAP`.

It takes tab-separated lines on stdin, and answers each with one line: "ok", "ok" and what was asked for, or "FAILED"
and the reason.

    open    ID  TIMEOUT_MS                  a producer with this transactional id, known to the coordinator
    begin
    send    TOPIC  PARTITION  VALUE         answered when the broker has acknowledged it
    commit
    abort
    read    ISOLATION  TOPIC  PARTITION     every value before the first "end", with commas; committed or uncommitted
    copy    ID  SOURCE  TARGET  GROUP       what SOURCE's partition 0 holds before "end" to TARGET's, as a member of the
                                            group, some records and their offsets in a transaction; the second of them
                                            is aborted, and done again. "ok" and the number of transactions.

When stdin ends, so does the program.
"""

import sys
import traceback
from typing import Protocol

END = "end"
BATCH = 20  # Records in a transaction of `copy`.
IDLE_S_MAX = 60


class Transactor(Protocol):
    def open(self, transactional_id: str, timeout_ms: int) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: str) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def read(self, isolation: str, topic: str, partition: int) -> list[str]: ...
    def copy(self, transactional_id: str, source: str, target: str, group: str) -> int: ...


def bootstrap() -> str:
    return sys.argv[1]


def run(transactor: Transactor) -> None:
    for line in sys.stdin:
        try:
            answer = _answer(transactor, *line.rstrip("\n").split("\t"))
        except Exception as error:  # The test decides whether it had to be.
            traceback.print_exc()
            print("FAILED", type(error).__name__, " ".join(str(error).split()), flush=True)
        else:
            print(f"ok {answer}".strip(), flush=True)


def _answer(transactor: Transactor, verb: str, *words: str) -> object:
    if verb == "open":
        transactor.open(words[0], int(words[1]))
    elif verb == "begin":
        transactor.begin()
    elif verb == "send":
        transactor.send(words[0], int(words[1]), words[2])
    elif verb == "commit":
        transactor.commit()
    elif verb == "abort":
        transactor.abort()
    elif verb == "read":
        return ",".join(transactor.read(words[0], words[1], int(words[2])))
    elif verb == "copy":
        return transactor.copy(*words)
    else:
        raise ValueError(f"no such verb: {verb}")
    return ""
