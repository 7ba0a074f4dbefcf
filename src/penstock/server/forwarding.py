"""Requests for the controller that came to another broker: passed on in an Envelope (KIP-590), and their answers.

A request is passed on once: what comes from a broker, in an Envelope or not, is answered where it arrives.
"""

import ipaddress
import struct

from penstock.base.config import BrokerConfig
from penstock.base.errors import BadPeer, ErrorCode
from penstock.cluster.metadata import Metadata
from penstock.partition.peers import PeerLost
from penstock.server.api import ApiKey, RequestHeader
from penstock.server.links import ControllerLink
from penstock.server.peers import Peers
from penstock.wire.codec import Struct, is_flexible_response, response_reader
from penstock.wire.fields import read_tags
from penstock.wire.varint import InvalidVarint

ENVELOPE_VERSION = 0
FORWARD_S_MAX = 30.0  # Java's admin client waits for as long by default.
ENVELOPE_BYTES = 256  # More than it takes around a request: two sizes, an address, and the header with our name.


class Forwarder:
    """Has a connection of its own, on which nothing waits that the broker itself has to ask of the controller."""

    def __init__(self, *, config: BrokerConfig, metadata: Metadata, peers: Peers) -> None:
        self._config = config
        self._metadata = metadata
        self._link = ControllerLink(peers, metadata)

    @property
    def is_needed(self) -> bool:
        """Whether the controller is another broker, or nobody."""
        return self._metadata.image.controller_id != self._config.node_id

    async def ask(self, header: RequestHeader, frame: memoryview) -> Struct:
        """The controller's answer to the request. PeerLost when there is none to be had."""
        if len(frame) + ENVELOPE_BYTES > self._config.socket_request_max_bytes:
            raise PeerLost(f"a request of {len(frame)} bytes leaves no room for its envelope")
        envelope = Struct(
            request_data=frame, request_principal=None, client_host_address=_address_bytes(header.client_host)
        )
        answer = await self._link.ask(ApiKey.ENVELOPE, ENVELOPE_VERSION, envelope, FORWARD_S_MAX)
        if answer.error_code != ErrorCode.none or answer.response_data is None:
            raise PeerLost(f"the controller refuses with error {answer.error_code}")
        return _read_response(header, answer.response_data)


def _read_response(header: RequestHeader, data: bytes) -> Struct:
    try:
        position = 4  # Behind the correlation id: it is in an envelope of its own.
        if is_flexible_response(header.api_key, header.version):
            position = read_tags(data, position, {}, {})
        response, _ = response_reader(header.api_key, header.version)(data, position)
    except (BadPeer, struct.error, IndexError, InvalidVarint, UnicodeDecodeError) as error:
        raise PeerLost(f"the controller's answer cannot be read: {error}") from error
    assert isinstance(response, Struct)
    return response


def _address_bytes(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed  # Link-local addresses name their interface.
    except ValueError:
        return b""  # Not from a socket.
