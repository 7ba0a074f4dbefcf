"""`penstock produce`: send lines, JSON objects or whole files as messages."""

import errno
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    DELIVERY_TIMEOUT_S,
    TIMEOUT_S,
    AsJson,
    BootstrapServer,
    TopicName,
    hint_for,
    producer,
    topic_metadata,
)
from penstock.cli.messages import BadMessage, Headers, NewMessage, from_json
from penstock.cli.output import Advance, Failure, note, plural, print_json, progress

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

MESSAGE_BYTES_MAX = 32 << 20  # The broker's own limit (max.message.bytes) is usually far lower and decides.
QUEUE_KIB_MAX = 40 << 10  # The largest message and some more. librdkafka may hold as much again in requests under way.
FAILURES_MAX = 1000  # Messages refused before we stop reading input that is evidently wrong.
POLL_EVERY = 64  # Messages between two looks at what came back; each look costs as much as a message.
FLUSH_POLL_S = 0.2  # How long Ctrl-C may have to wait.


STDIN = Path("-")


class Form(StrEnum):
    LINES = "lines"
    JSON = "json"
    RAW = "raw"


class CodecName(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    ZERO = "0"


def produce(
    topic: TopicName,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files to send; - is stdin.", show_default="stdin")
    ] = None,
    form: Annotated[
        Form,
        typer.Option("--format", help="lines: a message per line; json: an object per line; raw: a message per file."),
    ] = Form.LINES,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-s", metavar="S", help="What stands between key and value in a line."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Key of every message.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every message; repeat for more."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="P", min=0, help="Send to this partition.", show_default="by key"),
    ] = None,
    repartition: Annotated[
        bool, typer.Option("--repartition", help="Ignore the partition that JSON input names; choose by key.")
    ] = False,
    null_marker: Annotated[
        str | None, typer.Option("--null-marker", metavar="TEXT", help="A key or value that reads so is sent as null.")
    ] = None,
    codec: Annotated[CodecName, typer.Option("--codec", help="Compression.")] = CodecName.NONE,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Who must have the message before it counts as sent.")
    ] = Acks.ALL,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="MSG/S", help="At most so many messages a second.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Send messages: lines of stdin, or of files.

    \b
    Examples:
      echo 'Hello, world' | penstock produce hello
      penstock produce orders orders.txt --key-separator : --header source=import
      penstock produce photos *.jpg --format raw
      seq 1000 | penstock produce load --rate 50
      penstock consume orders --json | penstock produce copy --format json
    """
    if key is not None and key_separator is not None:
        raise Failure("--key and --key-separator exclude each other.", hint="Drop one of them.", code="USAGE")
    if key_separator == "" or (rate is not None and rate <= 0):
        raise Failure("--key-separator cannot be empty, and --rate must be more than 0.", code="USAGE")
    headers = _headers(header)
    paths = files or [STDIN]
    total = _total_bytes(paths)
    sender = _Sender(topic, bootstrap_server, codec, acks, rate)
    if STDIN in paths and sys.stdin.isatty():
        note("One message per line; Ctrl-D ends.")
    reader = _Reader(form, key_separator, None if key is None else key.encode(), null_marker)
    # A bar would run through the lines that someone types.
    after_s = 3600.0 if sys.stdin.isatty() and STDIN in paths else 0.5
    with progress(f"Sending to {topic}", total, unit="bytes", after_s=after_s) as advance:
        complaint = sender.send_all(_addressed(reader.read(paths, advance), headers, partition, repartition))
    sender.report(complaint, as_json=json)


def _addressed(
    messages: Iterable[NewMessage], headers: Headers, partition: int | None, repartition: bool
) -> Iterator[NewMessage]:
    for message in messages:
        if headers:
            message = message._replace(headers=[*message.headers, *headers])
        if partition is not None or repartition:
            message = message._replace(partition=partition)
        yield message


class _Reader:
    """Messages from input: bounded by the longest line, whatever the size of the files."""

    def __init__(self, form: Form, key_separator: str | None, key: bytes | None, null_marker: str | None) -> None:
        self._form = form
        self._separator = None if key_separator is None else key_separator.encode()
        self._key = key
        self._null = None if null_marker is None else null_marker.encode()

    def read(self, paths: Iterable[Path], advance: Advance) -> Iterator[NewMessage]:
        """BadMessage, with file and line, at input that makes no message."""
        for path in paths:
            name = "stdin" if path == STDIN else str(path)
            try:
                with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as source:
                    yield from self._read_file(source, name, advance)
            except OSError as error:
                raise BadMessage(f"{name} cannot be read: {error.strerror}") from error

    def _read_file(self, source: BinaryIO, name: str, advance: Advance) -> Iterator[NewMessage]:
        if self._form is Form.RAW:
            data = source.read(MESSAGE_BYTES_MAX + 1)
            if len(data) > MESSAGE_BYTES_MAX:
                raise BadMessage(f"{name} is larger than {MESSAGE_BYTES_MAX >> 20} MiB")
            yield NewMessage(self._key, data)
            advance(len(data))
            return
        for number, line in enumerate(_lines(source), 1):
            try:
                message = self._message(line)
            except BadMessage as error:
                raise BadMessage(f"line {number} of {name}: {error}") from error
            yield message
            advance(len(line) + 1)

    def _message(self, line: bytes) -> NewMessage:
        if len(line) > MESSAGE_BYTES_MAX:
            raise BadMessage(f"longer than {MESSAGE_BYTES_MAX >> 20} MiB")
        if self._form is Form.JSON:
            message = from_json(line)
            return message if self._key is None else message._replace(key=self._key)
        key, value = self._key, line
        if self._separator is not None:
            key, found, value = line.partition(self._separator)
            if not found:
                raise BadMessage(f"there is no {self._separator.decode()!r} between key and value")
        return NewMessage(self._or_null(key), self._or_null(value))

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self._null else data


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Lines without their end; one longer than a message may be comes out cut, for the caller to refuse."""
    while line := source.readline(MESSAGE_BYTES_MAX + 2):
        yield line[:-1] if line.endswith(b"\n") else line


class _Sender:
    """Hands messages to librdkafka, keeps count, and remembers why some were refused."""

    def __init__(self, topic: str, bootstrap_server: str, codec: CodecName, acks: Acks, rate: float | None) -> None:
        self._topic = topic
        self._bootstrap_server = bootstrap_server
        self._rate = rate
        self._failures: Counter[tuple[str, str]] = Counter()
        self._taken = 0  # Messages that librdkafka took; those it could not deliver are in `_failures` too.
        self._bytes = 0
        self._is_hopeless = False  # Nothing will be delivered any more: stop reading input.
        self._interrupted = False
        self._producer = producer(
            bootstrap_server,
            {
                "acks": acks.value,
                "compression.type": codec.value,
                "message.max.bytes": MESSAGE_BYTES_MAX
                + (64 << 10),  # The message, its headers and the batch around it.
                "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
                "request.timeout.ms": int(TIMEOUT_S * 1000),
                "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
                "delivery.report.only.error": True,  # A call per message would cost more than sending it.
                "on_delivery": self._on_delivery,
            },
        )
        from confluent_kafka import KafkaException

        self._refusal = KafkaException
        topic_metadata(self._producer, topic, f"send to topic '{topic}'", bootstrap_server)
        self._started_at = time.monotonic()

    def send_all(self, messages: Iterator[NewMessage]) -> str | None:
        """Returns when everything is delivered or given up; what was wrong with the input, if anything was."""
        complaint = None
        try:
            for message in messages:
                self._send(message)
                if self._is_hopeless or self._failures.total() >= FAILURES_MAX:
                    break
                if self._rate is not None:
                    self._pace(self._rate)
        except BadMessage as error:
            complaint = str(error)
        except KeyboardInterrupt:
            self._interrupted = True
        while self._producer.flush(FLUSH_POLL_S):
            pass
        return complaint

    def _send(self, message: NewMessage) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) or None,
                    partition=-1 if message.partition is None else message.partition,
                    timestamp=message.timestamp or 0,
                )
            except BufferError:
                self._producer.poll(FLUSH_POLL_S)
            except self._refusal as exception:
                self._count_failure(exception.args[0])
                return
            else:
                break
        self._taken += 1
        self._bytes += len(message.value or b"") + len(message.key or b"")
        if self._taken % POLL_EVERY == 0:
            self._producer.poll(0)

    def _pace(self, rate: float) -> None:
        """Wait until the next message is due, while the client goes on working."""
        while (left_s := self._started_at + self._taken / rate - time.monotonic()) > 0:
            self._producer.poll(min(left_s, FLUSH_POLL_S))

    def _on_delivery(self, error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            self._taken -= 1
            self._count_failure(error)

    def _count_failure(self, error: "KafkaError") -> None:
        self._failures[error.name(), error.str().rpartition(": ")[2]] += 1
        if error.name() in ("_MSG_TIMED_OUT", "_TRANSPORT", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            self._is_hopeless = True

    def report(self, complaint: str | None, *, as_json: bool) -> None:
        """The summary; Failure when anything was not sent."""
        seconds = time.monotonic() - self._started_at
        failed = self._failures.total()
        if as_json:
            print_json(
                {
                    "topic": self._topic,
                    "sent": self._taken,
                    "failed": failed,
                    "bytes": self._bytes,
                    "seconds": round(seconds, 3),
                }
            )
        else:
            speed = f" ({self._taken / seconds:,.0f}/s)" if seconds >= 1 else ""
            print(f"Sent {plural(self._taken, 'message')} to {self._topic} in {seconds:.2f} s{speed}.", file=sys.stderr)
        if self._interrupted:
            raise KeyboardInterrupt
        if failed:
            raise self._delivery_failure(failed)
        if complaint is not None:
            raise Failure(
                f"Stopped at bad input: {complaint}.",
                hint=f"{plural(self._taken, 'message')} before it {'was' if self._taken == 1 else 'were'} sent. "
                "Correct the input and send the rest.",
                code="BAD_INPUT",
            )

    def _delivery_failure(self, failed: int) -> Failure:
        reasons = [f"{text} ({name})" for name, text in self._failures]
        if len(reasons) > 1:
            counts = self._failures.values()
            reasons = [f"{count:,} x {reason}" for count, reason in zip(counts, reasons, strict=True)]
        name = self._failures.most_common(1)[0][0][0]
        hint = hint_for(name, self._bootstrap_server, self._topic)
        if name == "_UNKNOWN_PARTITION":
            hint = f"Let the key decide: without --partition, and with --repartition for JSON. {hint}"
        return Failure(
            f"{plural(failed, 'message')} could not be sent to '{self._topic}': {'; '.join(reasons)}.",
            hint=hint,
            code=name,
        )


def _headers(options: list[str] | None) -> Headers:
    headers = []
    for option in options or ():
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise Failure(
                f"--header {option} has no value.",
                hint="Give NAME=VALUE, for example --header source=import.",
                code="USAGE",
            )
        headers.append((name, value.encode()))
    return headers


def _total_bytes(paths: Iterable[Path]) -> int | None:
    """Size of all input, None when a part of it is a pipe or a terminal; Failure when a file cannot be read."""
    total: int | None = 0
    for path in paths:
        try:
            status = os.fstat(sys.stdin.fileno()) if path == STDIN else path.stat()
            if path != STDIN and not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise Failure(
                f"Cannot read {path}: {error.strerror}.", hint="Nothing was sent.", code="BAD_INPUT"
            ) from error
        if stat.S_ISDIR(status.st_mode):
            raise Failure(f"{path} is a directory.", hint=f"Name its files: {path}/*", code="BAD_INPUT")
        total = total + status.st_size if total is not None and stat.S_ISREG(status.st_mode) else None
    return total
