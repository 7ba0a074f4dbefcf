"""Messages from stdin and files, one at a time: memory is bounded by the longest line, not by the size of the input."""

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from penstock.cli.messages import BadMessage, NewMessage, from_json
from penstock.cli.output import Advance, Failure

MESSAGE_BYTES_MAX = 32 << 20  # The broker's own limit (max.message.bytes) is usually far lower and decides.
STDIN = Path("-")


class Form(StrEnum):
    LINES = "lines"
    JSON = "json"
    RAW = "raw"


class MessageReader:
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


def total_bytes(paths: Iterable[Path]) -> int | None:
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
