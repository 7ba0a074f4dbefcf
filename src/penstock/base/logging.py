"""Log lines are events with fields: `log.info("segment rolled", partition=tp, base_offset=7)`.

Values are escaped, so that no client can forge a line or send control codes to an operator's terminal.
"""

import logging
import sys
from typing import Any


class EventLogger:
    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, fields, exc_info=True)

    def _log(self, level: int, event: str, fields: dict[str, object], **options: Any) -> None:
        if self._logger.isEnabledFor(level):
            parts = [event, *(f"{name}={_plain(value)}" for name, value in fields.items())]
            self._logger.log(level, "%s", " ".join(parts), **options)


def get_logger(name: str) -> EventLogger:
    return EventLogger(name)


def configure_logging(level: str = "INFO") -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format="%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )


def _plain(value: object) -> str:
    text = str(value)
    if text and text.isascii() and text.isprintable() and " " not in text:
        return text
    return ascii(text)
