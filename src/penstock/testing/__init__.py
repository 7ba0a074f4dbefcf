"""A real broker inside the test process, with a clock that tests can advance. See docs/testing-your-code.md.

pytest imports this package, for its plugin, in every run of every project that has Penstock installed: so it imports
nothing until a name is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.embedded import EmbeddedBroker, broker

__all__ = ["EmbeddedBroker", "broker"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("penstock.testing.embedded"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
