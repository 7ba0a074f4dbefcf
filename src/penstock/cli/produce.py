"""`penstock produce`: send lines, JSON objects or whole files as messages."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.connection import DEFAULT_BOOTSTRAP_SERVER, AsJson, BootstrapServer, TopicName
from penstock.cli.messages import Headers, NewMessage
from penstock.cli.output import Failure, note, progress
from penstock.cli.reader import STDIN, Form, MessageReader, total_bytes
from penstock.cli.sender import Acks, CodecName, MessageSender


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
    total = total_bytes(paths)
    sender = MessageSender(topic, bootstrap_server, codec, acks, rate)
    if STDIN in paths and sys.stdin.isatty():
        note("One message per line; Ctrl-D ends.")
    reader = MessageReader(form, key_separator, None if key is None else key.encode(), null_marker)
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
