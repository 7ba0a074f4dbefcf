"""`penstock consume`: print messages from any offset or time, to the end or for as long as they come."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    TIMEOUT_S,
    BootstrapServer,
    TopicName,
    command,
    consumer,
    explained,
    failure_of,
    prompt_interrupt,
    topic_metadata,
)
from penstock.cli.messages import NAMED_FORMATS, Encode, StoredMessage, encoder, shown_text
from penstock.cli.output import Failure, Lines, local_time, note, plural, progress
from penstock.cli.start_at import Kind, StartAt, parse_start, start_offset

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

BATCH_MESSAGES = 1000  # Printed between two flushes; large enough that flushing costs nothing.
POLL_S = 0.2  # How long Ctrl-C may have to wait.
SILENCE_S = 30.0  # Without --follow the end is known: no message for this long means the broker has gone.

Ranges = dict[int, tuple[int, int]]  # Partition: first offset to read, and the first not to read.


def consume(
    topic: TopicName,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="P", min=0, help="Only this partition; repeat for more.", show_default="all"
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="START",
            help="earliest, latest, an offset (42), before the end (-10), a time (2026-01-31T08:00, "
            "milliseconds since 1970) or an age (15m, 1h, 2d).",
        ),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new messages until Ctrl-C.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after so many messages.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="value, key-value, table, json, or your own with %t topic, %p partition, %o offset, %T timestamp, "
            "%k key, %v value, %h headers.",
        ),
    ] = "value",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json; errors are JSON too.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Do not escape control characters on a terminal.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
) -> None:
    """Print the messages of a topic, and stop at its end.

    \b
    Examples:
      penstock consume orders
      penstock consume orders --follow --from latest
      penstock consume orders --from -10 --format table
      penstock consume orders --from 1h --partition 0 --count 5
      penstock consume orders --format '%p:%o %k=%v'
      penstock consume orders --json | penstock produce copy --format json
    """
    try:
        start_at = parse_start(start, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise Failure(f"{error}.", hint="For example: --from 1h", code="USAGE") from error
    try:
        write = _writer("json" if json else form, escape=sys.stdout.isatty() and not raw)
    except ValueError as error:
        raise Failure(
            f"{error}.", hint=f"Named formats: {', '.join(NAMED_FORMATS)}. See: penstock consume --help", code="USAGE"
        ) from error
    doing = f"read topic '{topic}'"
    reader = consumer(
        bootstrap_server,
        {
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # When retention overtakes us, go on with what is left.
            "fetch.queue.backoff.ms": 10,  # The default second of rest after a full queue would halve the speed.
            "isolation.level": "read_committed",
        },
    )
    with explained(doing, bootstrap_server, topic):
        ranges = _plan(reader, topic, partition, start_at, bootstrap_server)
        if follow and not any(low < high for low, high in ranges.values()):
            note("Waiting for messages; Ctrl-C stops.")
        printed = 0
        try:
            printed = _copy(_batches(reader, topic, ranges, follow, bootstrap_server), write, count, ranges, follow)
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            sys.stdout.flush()
    if not follow and printed == 0:
        note(f"No messages there. To wait for new ones: {command(f'consume {topic} --follow', bootstrap_server)}")


def _plan(reader: "Consumer", topic: str, wanted: list[int] | None, start: StartAt, bootstrap_server: str) -> Ranges:
    """What to read of each partition."""
    metadata = topic_metadata(reader, topic, f"read topic '{topic}'", bootstrap_server)
    partitions = sorted(set(wanted)) if wanted else sorted(metadata.partitions)
    missing = [number for number in partitions if number not in metadata.partitions]
    if missing:
        raise Failure(
            f"Topic '{topic}' has no partition {missing[0]}: "
            f"it has {plural(len(metadata.partitions), 'partition')}, counted from 0.",
            hint=f"See: {command(f'topics describe {topic}', bootstrap_server)}",
            code="_UNKNOWN_PARTITION",
        )
    lows = _offsets_at(reader, topic, partitions, -2)  # ListOffsets knows the ends by these "times".
    highs = _offsets_at(reader, topic, partitions, -1)
    times = _offsets_at(reader, topic, partitions, start.number) if start.kind is Kind.TIME else {}
    ranges = {}
    for number in partitions:
        low, high = lows[number], highs[number]
        first = start_offset(start, low, high, times.get(number))
        if start.kind is Kind.OFFSET and first != start.number:
            note(f"Partition {number} holds offsets {low} to {high}: starting at {first}.")
        ranges[number] = (first, high)
    return ranges


def _offsets_at(reader: "Consumer", topic: str, partitions: list[int], timestamp: int) -> dict[int, int]:
    from confluent_kafka import KafkaException, TopicPartition

    asked = [TopicPartition(topic, number, timestamp) for number in partitions]
    found = {}
    with prompt_interrupt():
        answers = reader.offsets_for_times(asked, timeout=TIMEOUT_S)
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
        found[answer.partition] = answer.offset
    return found


def _batches(
    reader: "Consumer", topic: str, ranges: Ranges, follow: bool, bootstrap_server: str
) -> Iterator[list["Message"]]:
    """Messages as they come, until every partition has reached its end, or for ever."""
    from confluent_kafka import KafkaError, TopicPartition

    open_ends = {number: high for number, (low, high) in ranges.items() if follow or low < high}
    reader.assign([TopicPartition(topic, number, ranges[number][0]) for number in open_ends])
    heard_at = time.monotonic()
    while open_ends:
        first = reader.poll(POLL_S)
        if first is None:
            if not follow and time.monotonic() - heard_at > SILENCE_S:
                raise Failure(
                    f"No message came for {SILENCE_S:.0f} seconds, before the end of '{topic}' was reached.",
                    hint=f"See that the broker at {bootstrap_server} still runs.",
                    code="_TIMED_OUT",
                )
            continue
        heard_at = time.monotonic()
        wanted = []
        for message in (first, *reader.consume(BATCH_MESSAGES - 1, timeout=0)):
            error = message.error()
            number, offset = message.partition(), message.offset()
            assert number is not None
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise failure_of(error, f"read topic '{topic}'", bootstrap_server, topic)
            if number not in open_ends:
                continue
            assert offset is not None
            if error is None and (follow or offset < open_ends[number]):
                wanted.append(message)
            # The last offset before the end may hold no message (a transaction's marker, a compacted record):
            # then it is the end of the partition that tells.
            if not follow and offset + (error is None) >= open_ends[number]:
                del open_ends[number]
                reader.incremental_unassign([TopicPartition(topic, number)])
        if wanted:
            yield wanted


def _copy(
    batches: Iterator[list["Message"]],
    write: Callable[[StoredMessage], bytes],
    count: int | None,
    ranges: Ranges,
    follow: bool,
) -> int:
    """How many messages were written to stdout."""
    total = sum(high - low for low, high in ranges.values())
    if count is not None:
        total = min(total, count)
    output = sys.stdout.buffer
    # Messages on the terminal are progress enough.
    quiet = follow or sys.stdout.isatty()
    printed = 0
    with progress("Reading", total, unit="messages", after_s=3600.0 if quiet else 0.5) as advance:
        for batch in batches:
            if count is not None:
                batch = batch[: count - printed]
            output.write(b"".join([write(_stored(message)) for message in batch]))
            output.flush()
            printed += len(batch)
            advance(len(batch))
            if printed == count:
                break
    return printed


def _stored(message: "Message") -> StoredMessage:
    timestamp_type, timestamp = message.timestamp()
    return StoredMessage(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        timestamp if timestamp_type else None,
        message.key(),
        message.value(),
        message.headers() or (),  # type: ignore[arg-type]  # A consumer gives a list of pairs with bytes.
    )


def _writer(form: str, *, escape: bool) -> Encode:
    if form != "table":
        return encoder(form, escape=escape)
    return _TableRows(escape)


class _TableRows:
    """Rows as they come: widths are fixed, and on a terminal a long value is cut to the line."""

    def __init__(self, on_terminal: bool) -> None:
        import shutil

        self._lines = Lines([("PARTITION", 9), ("OFFSET", 10), ("TIME", -23), ("KEY", -16), ("VALUE", -5)])
        self._width = shutil.get_terminal_size().columns if on_terminal else None
        self._started = False

    def __call__(self, message: StoredMessage) -> bytes:
        when = "" if message.timestamp is None else local_time(message.timestamp)
        row = self._lines.row(
            (message.partition, message.offset, when, shown_text(message.key), shown_text(message.value))
        )
        if self._width is not None and len(row) > self._width:
            row = row[: self._width - 1] + "…"
        header = "" if self._started else self._lines.header_row + "\n"
        self._started = True
        return (header + row + "\n").encode()
