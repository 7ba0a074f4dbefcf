"""All connections of one listening port: limits, and what they share."""

import asyncio
from collections import Counter

from penstock.base.config import BrokerConfig
from penstock.base.logging import get_logger
from penstock.base.memory import give_back_freed
from penstock.server.connection import Connection
from penstock.server.connection_rates import ConnectionRates
from penstock.server.dispatch import Dispatcher
from penstock.server.network import Listener, Network
from penstock.server.outbox import Outbox
from penstock.wire.framing import RECEIVE_BYTES

log = get_logger(__name__)

SWEEP_INTERVAL_S = 2.0
BAD_PEER_LINES_MAX = 5  # Log lines per sweep.
FRAME_STALL_S = 10.0  # A peer that began a frame and sends next to nothing for so long holds memory for nothing.
CLOSING_S = 10.0  # For a peer that is being closed to read what is on its way.
GIVE_BACK_BYTES = 64 << 20  # Less than that is soon used again, and is not worth the time that it takes.
REPLIES_BYTES_MAX = 256 << 20  # Replies that wait for their turn or their reader: five of the largest fetches.


class ConnectionListener:
    def __init__(self, *, config: BrokerConfig, network: Network, dispatcher: Dispatcher) -> None:
        # Shared by all connections: each empties it before the event loop reads for the next one.
        self.receive_buffer = bytearray(RECEIVE_BYTES)
        self.frame_bytes_max = config.socket_request_max_bytes
        self.budget_used = 0  # Bytes of the requests that are being worked on.
        self.budget_max = config.queued_max_request_bytes
        self.outbox = Outbox()
        self.unsent_bytes = 0  # Of replies that are ready, or that their peers do not read.
        self.send_buffer_bytes = config.socket_send_buffer_bytes
        self.dispatch = dispatcher.dispatch
        self.port = config.port
        self.rates = ConnectionRates(config)
        self._config = config
        self._network = network
        self._connections: dict[Connection, None] = {}  # A dict for its order, which simulation must be able to repeat.
        self._per_ip: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}
        self._bad_peers_count = 0  # Since the last sweep.
        self._held_bytes_peak = 0  # Of requests and replies, since freed memory was last given back.
        self._listener: Listener | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.now = asyncio.get_running_loop().time

    async def start(self) -> None:
        self._listener = await self._network.listen(lambda: Connection(self), self._config.host, self._config.port)
        self.port = self._listener.port
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_loop(), name="connection sweeper")

    def stop_accepting(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def stop(self) -> None:
        """Close the port, then the connections; replies that are ready still leave."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for connection in list(self._connections):
            connection.close_gently()
        for _ in range(100):
            if not self._connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close("the broker stops")
        self.outbox.close()

    def on_connected(self, connection: Connection) -> bool:
        """Count the connection in; False when there are too many already."""
        self._connections[connection] = None
        self._per_ip[connection.ip] += 1
        return (
            len(self._connections) <= self._config.max_connections
            and self._per_ip[connection.ip] <= self._config.max_connections_per_ip
        )

    def admit(self, connection: Connection) -> None:
        """Serve a new connection at once, or later, or not at all if too many have come of late."""
        admission = self.rates.on_connection(connection.ip, self.now())
        if admission.hold_s > 0:
            reason = "too many connections from its address of late" if admission.is_refused else None
            connection.mute(admission.hold_s, then_close=reason)

    def note_bad_peer(self, peer: str, reason: str) -> None:
        """Tell the operator why a peer was dropped, but let no peer fill the log."""
        self._bad_peers_count += 1
        if self._bad_peers_count <= BAD_PEER_LINES_MAX:
            log.warning("connection closed: not a request that can be served", peer=peer, reason=reason)

    def on_disconnected(self, connection: Connection, frame_bytes: int) -> None:
        self._note_held()
        self._connections.pop(connection, None)
        self._waiting.pop(connection, None)
        self._per_ip[connection.ip] -= 1
        if not self._per_ip[connection.ip]:
            del self._per_ip[connection.ip]
        self.release(frame_bytes)

    # Memory of requests

    @property
    def is_over_budget(self) -> bool:
        return self.budget_used > self.budget_max

    @property
    def replies_room_bytes(self) -> int:
        """What is left for replies that could also be shorter."""
        return max(0, REPLIES_BYTES_MAX - self.unsent_bytes)

    def wait_for_budget(self, connection: Connection) -> None:
        self._waiting[connection] = None

    def release(self, frame_bytes: int) -> None:
        self.budget_used -= frame_bytes
        if self._waiting and not self.is_over_budget:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.on_budget_freed()

    def _note_held(self) -> int:
        held_bytes = self.budget_used + self.unsent_bytes
        self._held_bytes_peak = max(self._held_bytes_peak, held_bytes)
        return held_bytes

    def _give_back_memory(self) -> None:
        """After a crowd of large requests or replies has gone, let its memory go, too."""
        held_bytes = self._note_held()
        if self._held_bytes_peak - held_bytes >= GIVE_BACK_BYTES:
            self._held_bytes_peak = held_bytes
            give_back_freed()

    # Idle and stalled peers

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        """Close connections that stalled inside a frame, have been silent for too long, or will not be closed."""
        if self._bad_peers_count > BAD_PEER_LINES_MAX:
            log.warning("more connections closed for the same kind of reason", count=self._bad_peers_count)
        self._bad_peers_count = 0
        self._give_back_memory()
        now = self.now()
        idle_ms = self._config.connections_max_idle_ms
        idle_s = float("inf") if idle_ms < 0 else idle_ms / 1000
        first_request_s = self._config.penstock_first_request_timeout_ms / 1000
        for connection in list(self._connections):
            silent_s = now - connection.active_at
            if connection.is_closed:
                if silent_s > CLOSING_S:
                    connection.close("does not read its last replies")
            elif connection.stalled_s(now) > FRAME_STALL_S:
                connection.close("stalled inside a frame")
            elif silent_s > idle_s and connection.is_idle:
                connection.close("idle for too long")
            elif now - connection.served_since > first_request_s and connection.is_waiting_for_first_request:
                connection.close("has not sent a request")
