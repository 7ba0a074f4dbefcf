"""Penstock: a message queue that speaks Kafka's wire protocol.

`connect` and `connect_async` are the client. They are imported when used: a broker needs no client, and no client a
broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client import connect, connect_async

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "connect_async"]


def __getattr__(name: str) -> Any:
    if name in ("connect", "connect_async"):
        return getattr(import_module("penstock.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
