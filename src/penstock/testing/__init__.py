"""A real broker inside the test process, with a clock that tests can advance. See docs/testing-your-code.md.

Importing this is cheap: the broker's own modules are imported when the first one starts.
"""

from penstock.testing.embedded import EmbeddedBroker, broker
from penstock.testing.virtual_time import VirtualTime

__all__ = ["EmbeddedBroker", "VirtualTime", "broker"]
