"""What a replica needs of the brokers that it follows. server/peer.py has the connection behind it."""

from typing import Protocol

from penstock.wire.codec import Struct
from penstock.wire.fields import Buffer


class PeerLost(OSError):
    """The other broker cannot be reached, or no more: what was asked for may have been done or not."""


class PeerLink(Protocol):
    """A connection to another broker, which knows us for the broker that we are."""

    @property
    def is_lost(self) -> bool: ...

    async def ask(self, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        """The reply. PeerLost when none comes in time; the connection is over then, for all who wait."""

    async def ask_raw(self, api_key: int, version: int, body: Buffer | list[Buffer], timeout_s: float) -> memoryview:
        """As `ask`, for who writes the request's body and reads the reply's by itself."""

    def close(self) -> None:
        """End the connection; PeerLost for all who wait."""


class PeerLinks(Protocol):
    async def connect(self, node_id: int) -> PeerLink:
        """A new connection, which is the caller's to close. PeerLost when there is none to be had."""
