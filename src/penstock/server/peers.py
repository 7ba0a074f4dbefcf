"""Connections to the other brokers of the cluster. Each begins with the proof of who we are (docs/adr/0003).

A connection lasts no longer than the two registrations that it was made under: when the image has another one for
either broker, or none, it is closed, and whoever uses it makes a new one.
"""

import asyncio

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.types import NodeId
from penstock.cluster.image import BrokerRegistration, ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.partition.peers import PeerLost
from penstock.server.api import ApiKey
from penstock.server.authentication import MECHANISM, proof_of
from penstock.server.links import ControllerLink
from penstock.server.network import Network
from penstock.server.peer import Peer
from penstock.wire.codec import Struct

CONNECT_S_MAX = 5.0  # A broker that is there answers in milliseconds, its image follows in less than a second.
RETRY_S = 0.1  # While the other's image has not followed.

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2


class Peers:
    def __init__(self, *, config: BrokerConfig, network: Network, metadata: Metadata) -> None:
        self._config = config
        self._network = network
        self._metadata = metadata
        self._open: dict[Peer, tuple[int, NodeId, int]] = {}  # Our epoch, the other's id and epoch.
        self.to_controller = ControllerLink(self, metadata)

    async def connect(self, node_id: int) -> Peer:
        """A new connection to the broker `node_id`, which knows who we are; the caller's to close.

        PeerLost when the image does not get such a broker, or it does not let us in, within seconds.
        """
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                while True:
                    peer = await self._try_to_connect(NodeId(node_id))
                    if peer is not None:
                        return peer
                    await asyncio.sleep(RETRY_S)
        except PeerLost:
            raise
        except OSError as error:  # TimeoutError is one.
            raise PeerLost(f"broker {node_id} cannot be reached: {str(error) or 'it takes too long'}") from error

    async def ask_controller(self, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        """The controller's reply. PeerLost when there is no controller, or it does not answer in time."""
        return await self.to_controller.ask(api_key, version, request, timeout_s)

    def apply(self, image: ClusterImage) -> None:
        """Close what was made under a registration that is over."""
        own = image.brokers.get(self._config.node_id)
        for peer, (own_epoch, node_id, epoch) in list(self._open.items()):
            other = image.brokers.get(node_id)
            if own is None or own.epoch != own_epoch or other is None or other.epoch != epoch:
                self._close(peer)

    async def close(self) -> None:
        for peer in list(self._open):
            self._close(peer)
        await asyncio.sleep(0)  # An aborted transport closes its socket in the next turn.

    def _close(self, peer: Peer) -> None:
        del self._open[peer]
        peer.close()

    async def _try_to_connect(self, node_id: NodeId) -> Peer | None:
        """None when the other broker does not know us, which it may in a moment."""
        own_id = self._config.node_id
        await self._metadata.until(lambda image: own_id in image.brokers and node_id in image.brokers)
        brokers = self._metadata.image.brokers
        own, other = brokers[own_id], brokers[node_id]
        peer = Peer(
            name=f"broker {node_id}",
            client_id=f"broker-{own_id}",
            frame_bytes_max=self._config.socket_request_max_bytes,
        )
        await self._network.connect(lambda: peer, other.host, other.port)
        is_known = False
        try:
            is_known = await _authenticate(peer, own)
        finally:
            if not is_known:
                peer.close()
        if not is_known:
            return None
        for lost in [peer for peer in self._open if peer.is_lost]:
            del self._open[lost]
        self._open[peer] = (own.epoch, node_id, other.epoch)
        self.apply(self._metadata.image)  # It may be another one by now.
        return peer


async def _authenticate(peer: Peer, own: BrokerRegistration) -> bool:
    """Whether the other broker knows us. PeerLost when it is no broker of ours."""
    handshake = Struct(mechanism=MECHANISM)
    answer = await peer.ask(ApiKey.SASL_HANDSHAKE, HANDSHAKE_VERSION, handshake, CONNECT_S_MAX)
    if answer.error_code != ErrorCode.none:
        raise PeerLost(f"it refuses {MECHANISM} with error {answer.error_code}")
    proof = Struct(auth_bytes=proof_of(own))
    answer = await peer.ask(ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, proof, CONNECT_S_MAX)
    return bool(answer.error_code == ErrorCode.none)
