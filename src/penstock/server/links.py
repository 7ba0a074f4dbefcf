"""Kept connections to other brokers, one to each, for who asks them now and then.

Replies come in the order of the requests. What may have to wait at the other side (for replicas, for the controller)
therefore has links of its own, so that nothing short waits behind it.
"""

import asyncio

from penstock.base.logging import get_logger
from penstock.base.types import NO_NODE
from penstock.cluster.metadata import Metadata
from penstock.partition.peers import PeerLink, PeerLinks, PeerLost
from penstock.wire.codec import Struct

log = get_logger(__name__)


class Links:
    """How much is asked at once is for the callers to bound."""

    def __init__(self, peers: PeerLinks) -> None:
        self._peers = peers
        self._links: dict[int, _Link] = {}  # No more than there have been brokers.

    async def ask(self, node_id: int, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        """The broker's reply. PeerLost when it cannot be reached, or does not answer in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = _Link(self._peers, node_id)
        try:
            async with asyncio.timeout_at(deadline):
                peer = await link.peer()
        except TimeoutError as error:
            raise PeerLost(f"no connection to broker {node_id} within {timeout_s:g} s") from error
        return await peer.ask(api_key, version, request, deadline - loop.time())

    def keep(self, node_ids: frozenset[int]) -> None:
        """Close the connections to all others."""
        for node_id in [node_id for node_id in self._links if node_id not in node_ids]:
            self._links.pop(node_id).close()


class ControllerLink:
    """One kept connection to whichever broker is the controller."""

    def __init__(self, peers: PeerLinks, metadata: Metadata) -> None:
        self._metadata = metadata
        self._links = Links(peers)

    async def ask(self, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        """The controller's reply. PeerLost when there is no controller, or it does not answer in time."""
        node_id = self._metadata.image.controller_id
        if node_id == NO_NODE:
            raise PeerLost("there is no controller")
        self._links.keep(frozenset((node_id,)))
        return await self._links.ask(node_id, api_key, version, request, timeout_s)


class _Link:
    def __init__(self, peers: PeerLinks, node_id: int) -> None:
        self._peers = peers
        self._node_id = node_id
        self._peer: PeerLink | None = None
        self._connecting = asyncio.Lock()  # Those who wait share the connection.
        self._is_told = False  # The operator, that it cannot be reached.
        self._is_closed = False

    async def peer(self) -> PeerLink:
        async with self._connecting:
            self._check_open()
            if self._peer is None or self._peer.is_lost:
                self._peer = await self._connect()
                if self._is_closed:
                    self._peer.close()
            return self._peer

    def _check_open(self) -> None:
        if self._is_closed:
            raise PeerLost(f"broker {self._node_id} is not asked any more")

    def close(self) -> None:
        self._is_closed = True
        if self._peer is not None:
            self._peer.close()

    async def _connect(self) -> PeerLink:
        try:
            peer = await self._peers.connect(self._node_id)
        except PeerLost as error:
            if not self._is_told:  # Once: clients ask again and again.
                self._is_told = True
                log.warning("a broker cannot be asked", broker=self._node_id, reason=error)
            raise
        if self._is_told:
            self._is_told = False
            log.info("a broker can be asked again", broker=self._node_id)
        return peer
