"""One member of a consumer group: `program BOOTSTRAP GROUP TOPIC NAME ASSIGNOR SESSION_MS`.

It reads, commits what it read, and tells of it in JSON lines on stdout, each with "event" and "at" (wall clock, ms):

    assigned   generation, member, partitions   all it owns from now on
    revoked    partitions                       gone again
    records    generation, records              [[partition, offset, value], ...]
    committed  generation, offsets              {partition: offset}
    refused    generation, offsets, error       the commit failed
    holding                                     has read without a commit, as told, and now waits
    left

It takes lines on stdin: `hold` (read once more, do not commit, wait), `commit` (what was held, then go on), `leave`.
When stdin ends, so does the program, so that no member outlives the test.
"""

import json
import os
import queue
import sys
import threading
import time
from typing import Protocol

POLL_S = 0.1

Records = list[tuple[int, int, str]]
Offsets = dict[int, int]


class Member(Protocol):
    def poll(self) -> tuple[int, Records]:
        """What there is to read, and the generation in which it was read."""

    def commit(self, offsets: Offsets) -> None: ...
    def close(self) -> None: ...


class Settings:
    def __init__(self) -> None:
        self.bootstrap, self.group, topic, self.name, self.assignor, session_ms = sys.argv[1:]
        self.topic = topic.removeprefix("^")
        # After a ^ the topic is subscribed to with a regular expression that stands for it.
        self.subscription = f"{topic[:-1]}." if topic.startswith("^") else topic
        self.session_ms = int(session_ms)
        self.heartbeat_ms = self.session_ms // 6
        self.server_assignor = self.assignor.partition("server-")[2] or None  # The new protocol: the broker assigns.


class Story:
    """What the member tells, and the generation and partitions that it speaks for."""

    def __init__(self) -> None:
        self.generation = -1
        self.owned: set[int] = set()
        self._revoked: set[int] = set()
        self._lock = threading.Lock()

    def tell(self, event: str, **facts: object) -> None:
        line = json.dumps({"event": event, "at": time.time() * 1000, **facts})
        with self._lock:
            print(line, flush=True)

    def assigned(self, partitions: set[int], *, generation: int, member: str) -> None:
        """`partitions` are added to those it has: eager clients have given up all of them before."""
        with self._lock:
            self.generation = generation
            self.owned |= partitions
        self.tell("assigned", generation=generation, member=member, partitions=sorted(self.owned))

    def revoked(self, partitions: set[int]) -> None:
        with self._lock:  # Some clients rebalance in a thread of their own.
            self.owned -= partitions
            self._revoked |= partitions
        self.tell("revoked", partitions=sorted(partitions))

    def take_revoked(self) -> set[int]:
        """What was taken from it since it was last asked, whether or not it was given back."""
        with self._lock:
            revoked, self._revoked = self._revoked, set()
        return revoked

    def records(self, generation: int, records: Records) -> None:
        self.tell("records", generation=generation, records=records)

    def committed(self, offsets: Offsets) -> None:
        self.tell("committed", generation=self.generation, offsets=offsets)

    def refused(self, offsets: Offsets, error: BaseException) -> None:
        text = f"{type(error).__name__} {' '.join(str(error).split())}"
        self.tell("refused", generation=self.generation, offsets=offsets, error=text)


def commands() -> "queue.Queue[str]":
    """What came in on stdin; a process whose stdin has ended is gone at once."""
    found: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            found.put(line.strip())
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return found


def run(member: Member, story: Story) -> None:
    told = commands()
    shall_hold = is_holding = False
    unsaved: Offsets = {}  # Read, not committed yet; a commit that was refused is tried again while it still owns them.
    while True:
        try:
            command = told.get(timeout=POLL_S) if is_holding else told.get_nowait()
        except queue.Empty:
            command = ""
        if command == "leave":
            member.close()
            story.tell("left")
            return
        if command == "hold":
            shall_hold = True
        if command == "commit":
            is_holding = False
            unsaved = _commit(member, story, unsaved)
        if is_holding:
            continue
        generation, records = member.poll()
        revoked = story.take_revoked()
        unsaved = {partition: offset for partition, offset in unsaved.items() if partition not in revoked}
        if records:
            story.records(generation, records)
            unsaved |= {partition: offset + 1 for partition, offset, _ in records}
        if records and shall_hold:
            shall_hold, is_holding = False, True
            story.tell("holding")
            continue
        # Some clients rebalance in a thread of their own: what was just read may be another's by now.
        unsaved = {partition: offset for partition, offset in unsaved.items() if partition in story.owned}
        if unsaved:
            unsaved = _commit(member, story, unsaved)


def _commit(member: Member, story: Story, offsets: Offsets) -> Offsets:
    """What is still to be committed."""
    try:
        member.commit(offsets)
    except Exception as error:  # Whatever it is, the test decides whether it had to be.
        story.refused(offsets, error)
        return offsets
    story.committed(offsets)
    return {}
