"""Carrying out a plan of moves: some at a time, with a look at how far they are, until all have arrived.

The moves are the controller's. Ends this command, they go on; started again, it takes up those that are under way.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from penstock.base.error_code import ErrorCode
from penstock.cli.cluster_view import ClusterView, LogSizes, look
from penstock.cli.move_plan import Layout, Partition
from penstock.cli.output import Failure, duration, plural, program
from penstock.cli.wire_client import ALTER_PARTITION_REASSIGNMENTS, ELECT_LEADERS, WireClient
from penstock.wire.codec import Struct

# Enough that brokers are not idle between two looks, also with small partitions: 100 a second. All of them at once
# would have every partition finish last.
IN_FLIGHT_MAX = 50
LOOK_S = 0.5
SIZES_S = 2.0  # Between two looks at the disks: each broker is asked.
LINE_S = 10.0  # Between two lines when nobody sits at a terminal.
STOPPED_LOOKS = 10  # A move that is neither there nor done for so long was stopped by somebody.
AWAY_S_MAX = 60.0  # A broker that is started anew is back long before.
TIMEOUT_MS = 30_000
PREFERRED = 0


class Progress(NamedTuple):
    done: int
    total: int
    bytes_done: int
    bytes_total: int
    bytes_per_s: float

    def __str__(self) -> str:
        parts = [f"{self.done:,} of {plural(self.total, 'partition')}"]
        if self.bytes_total:
            parts.append(f"{size(self.bytes_done)} of {size(self.bytes_total)}")
            if self.bytes_per_s > 0:
                left_s = (self.bytes_total - self.bytes_done) / self.bytes_per_s
                parts += [f"{size(self.bytes_per_s)}/s", f"{duration(left_s)} left"]
        return ", ".join(parts)


def size(count: float) -> str:
    """Bytes in the unit that leaves one to four digits: 512 B, 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Moves:
    """One plan on its way."""

    def __init__(self, client: WireClient, view: ClusterView, plan: Layout) -> None:
        self._client = client
        self._view = view
        self._plan = dict(plan)
        self._waiting = sorted(plan, reverse=True)  # The next is last.
        self._in_flight: dict[Partition, int] = {}  # For how many looks they were neither there nor done.
        self._sizes = LogSizes()
        self._new = {
            partition: set(target) - set(view.partitions[partition].isr) for partition, target in plan.items()
        }  # Where there is something to copy.
        self._bytes = dict.fromkeys(plan, 0)  # To be copied, in all.
        self._copied = dict.fromkeys(plan, 0)
        self._began_at = self._sized_at = time.monotonic()
        self._begun_with = 0  # Bytes that were there already.
        self._all_there_at = time.monotonic()  # When we last saw all brokers that something moves to.

    def run(self, show: Callable[[Progress], None]) -> None:
        """Return when all have arrived, or were stopped by somebody. Failure when one cannot be moved."""
        try:
            self._take_sizes(self._plan)
            self._begun_with = sum(self._copied.values())
            for partition in list(self._waiting):
                # Of an earlier start of this command.
                if self._view.partitions[partition].is_moving and self._is_as_planned(partition):
                    self._waiting.remove(partition)
                    self._in_flight[partition] = 0
            while self._waiting or self._in_flight:
                self._submit()
                time.sleep(LOOK_S)
                self._view = look(self._client)
                self._note_arrivals()
                self._check_brokers()
                if time.monotonic() - self._sized_at > SIZES_S:
                    self._take_sizes(self._in_flight)
                show(self.progress)
        finally:
            self._sizes.close()

    @property
    def progress(self) -> Progress:
        copied = sum(self._copied.values())
        elapsed_s = time.monotonic() - self._began_at
        done = len(self._plan) - len(self._waiting) - len(self._in_flight)
        rate = (copied - self._begun_with) / elapsed_s if elapsed_s > 1 else 0.0
        return Progress(done, len(self._plan), copied, sum(self._bytes.values()), rate)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def _is_as_planned(self, partition: Partition) -> bool:
        return self._view.partitions[partition].target == self._plan[partition]

    def _submit(self) -> None:
        room = IN_FLIGHT_MAX - len(self._in_flight)
        chosen = [self._waiting.pop() for _ in range(min(room, len(self._waiting)))]
        if not chosen:
            return
        by_topic: dict[str, list[Struct]] = {}
        for partition in chosen:
            item = Struct(partition_index=partition.number, replicas=list(self._plan[partition]))
            by_topic.setdefault(partition.topic, []).append(item)
        reply = self._client.ask(
            ALTER_PARTITION_REASSIGNMENTS,
            0,
            Struct(
                timeout_ms=TIMEOUT_MS,
                topics=[Struct(name=name, partitions=items) for name, items in by_topic.items()],
            ),
        )
        _check(reply.error_code, reply.error_message, "The partitions")
        for topic in reply.responses:
            for item in topic.partitions:
                partition = Partition(topic.name, item.partition_index)
                if item.error_code != ErrorCode.unknown_topic_or_partition:  # Else it was deleted meanwhile.
                    _check(item.error_code, item.error_message, str(partition))
                    self._in_flight[partition] = 0

    def _note_arrivals(self) -> None:
        for partition in list(self._in_flight):
            view = self._view.partitions.get(partition)
            if view is None or (not view.is_moving and view.replicas == self._plan[partition]):
                self._copied[partition] = self._bytes[partition]
                del self._in_flight[partition]
            elif view.is_moving:
                self._in_flight[partition] = 0
            else:
                self._in_flight[partition] += 1
                if self._in_flight[partition] > STOPPED_LOOKS:
                    del self._in_flight[partition]

    def _check_brokers(self) -> None:
        """Failure when something moves to a broker that does not come back: it would be waited for until it does."""
        away = {node for partition in self._in_flight for node in self._plan[partition]} - self._view.brokers.keys()
        if not away:
            self._all_there_at = time.monotonic()
        elif time.monotonic() - self._all_there_at > AWAY_S_MAX:
            node = min(away)
            raise Failure(
                f"Partitions are on their way to broker {node}, which is away.",
                hint=f"Start it again, or have them go elsewhere with: {program()} brokers drain {node}",
                code="BROKER_AWAY",
            )

    def _take_sizes(self, partitions: Iterable[Partition]) -> None:
        wanted = [partition for partition in partitions if self._new[partition]]
        if wanted:
            sizes = self._sizes.of(self._view.brokers.values(), wanted)
            for partition in wanted:
                view = self._view.partitions[partition]
                whole = 0 if view.leader is None else sizes.get((view.leader, partition), 0)
                have = sum(min(whole, sizes.get((node, partition), 0)) for node in self._new[partition])
                self._bytes[partition] = max(self._bytes[partition], whole * len(self._new[partition]))
                self._copied[partition] = max(self._copied[partition], have)
        self._sized_at = time.monotonic()


def carry_out(client: WireClient, view: ClusterView, plan: Layout, *, doing: str, again: str, quiet: bool) -> Progress:
    """Move until all have arrived, and say how far it is; `again` is the command to go on with."""
    moves = Moves(client, view, plan)
    try:
        with _Screen(doing, quiet=quiet) as screen:
            moves.run(screen.show)
    except KeyboardInterrupt:
        print(
            f"{plural(moves.in_flight, 'partition')} on the way: they arrive without this command. "
            f"A throttle stays until it has ended.\nGo on with: {again}",
            file=sys.stderr,
        )
        raise
    return moves.progress


def elect_preferred(client: WireClient, partitions: Iterable[Partition] | None) -> int:
    """Have these partitions, or all, led by their preferred replicas; gives how many leaders changed."""
    topics = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.topic, []).append(partition.number)
        topics = [Struct(topic=name, partitions=numbers) for name, numbers in by_topic.items()]
    request = Struct(election_type=PREFERRED, topic_partitions=topics, timeout_ms=TIMEOUT_MS)
    reply = client.ask(ELECT_LEADERS, 1, request)
    _check(reply.error_code, None, "Leaders")
    results = [item for topic in reply.replica_election_results for item in topic.partition_result]
    return sum(item.error_code == ErrorCode.none for item in results)


def _check(code: int, message: str | None, what: str) -> None:
    if code != ErrorCode.none:
        name = ErrorCode(code).name
        raise Failure(f"{what} cannot be moved: {message or name}.", code=name.upper())


class _Screen:
    """One line on a terminal that changes, lines in turn for a log, nothing for who wants JSON."""

    def __init__(self, doing: str, *, quiet: bool) -> None:
        self._doing = doing
        self._is_quiet = quiet
        self._live: Any = None
        self._due_at = time.monotonic() + LINE_S

    def __enter__(self) -> "_Screen":
        if not self._is_quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._live = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task(self._doing, state="")
            self._live.start()
        return self

    def show(self, progress: Progress) -> None:
        if self._live is not None:
            # Bytes say more, but there may be none to copy.
            done, total = (
                (progress.bytes_done, progress.bytes_total) if progress.bytes_total else (progress.done, progress.total)
            )
            self._live.update(self._task, completed=done, total=total, state=str(progress))
        elif not self._is_quiet and time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + LINE_S
            print(f"{self._doing}: {progress}", flush=True)

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
