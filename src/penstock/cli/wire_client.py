"""A blocking client for requests that confluent-kafka does not have: one connection, one request at a time.

Any broker passes on what only the controller can do. Everything that is asked here can be asked twice, so when the
connection breaks, or nobody controls for a moment, the next broker is asked, up to a limit.
"""

import socket
import struct
import time
from collections.abc import Iterable
from itertools import count

from penstock.base.errors import BadPeer, ErrorCode
from penstock.cli.connection import host_and_port, unreachable
from penstock.wire.codec import Struct, is_flexible_request, is_flexible_response, request_writer, response_reader
from penstock.wire.fields import read_tags
from penstock.wire.varint import InvalidVarint

METADATA = 3
DESCRIBE_CONFIGS = 32
DESCRIBE_LOG_DIRS = 35
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46

CONNECT_S_MAX = 5.0
REPLY_S_MAX = 35.0  # A broker waits half a minute for the controller that it has passed a request on to.
PATIENCE_S = 60.0  # A controller that was killed has a successor when its session ends, after 20 s by default.
PAUSE_S = 0.3
REPLY_BYTES_MAX = 100 << 20

_HEADER = struct.Struct(">hhih")
_CLIENT_ID = b"penstock-cli"
_BROKEN = (OSError, BadPeer, struct.error, IndexError, InvalidVarint, UnicodeDecodeError)


class WireClient:
    def __init__(self, bootstrap_server: str, *, patience_s: float = PATIENCE_S) -> None:
        """`patience_s`: for how long to go on when nobody answers; the first time somebody has to."""
        self._bootstrap_server = bootstrap_server
        self._addresses = [host_and_port(address.strip()) for address in bootstrap_server.split(",")]
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] | None = None  # That we are connected to.
        self._has_answered = False  # Somebody: then it is a cluster, and worth waiting for.
        self._ids = count(1)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = self._address = None

    def learn(self, addresses: Iterable[tuple[str, int]]) -> None:
        """More brokers to ask, should the ones that we know go away."""
        self._addresses += [address for address in addresses if address not in self._addresses]

    def prefer(self, address: tuple[str, int]) -> None:
        """Ask this broker from now on, while it answers."""
        if self._address != address:
            self.close()
            self._addresses.sort(key=lambda known: known != address)

    def ask(self, api_key: int, version: int, request: Struct) -> Struct:
        """The reply; Failure when nobody gives one."""
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                reply = self._ask_once(api_key, version, request)
                self._has_answered = True
                if getattr(reply, "error_code", 0) != ErrorCode.not_controller:
                    return reply
                reason = "nobody controls the cluster"
            except _BROKEN as error:
                reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
            self.close()
            self._addresses.append(self._addresses.pop(0))  # The next time another one.
            if time.monotonic() > give_up_at or not self._has_answered:
                raise unreachable(self._bootstrap_server, reason)
            time.sleep(PAUSE_S)

    def _ask_once(self, api_key: int, version: int, request: Struct) -> Struct:
        connection = self._connected()
        number = next(self._ids)
        out = bytearray(_HEADER.pack(api_key, version, number, len(_CLIENT_ID)) + _CLIENT_ID)
        if is_flexible_request(api_key, version):
            out.append(0)
        request_writer(api_key, version)(out, request)
        connection.sendall(struct.pack(">i", len(out)) + out)
        (size,) = struct.unpack(">i", _received(connection, 4))
        if not 4 <= size <= REPLY_BYTES_MAX:
            raise BadPeer(f"a reply of {size} bytes")
        frame = _received(connection, size)
        if struct.unpack_from(">i", frame)[0] != number:
            raise BadPeer("the reply to another request")
        position = read_tags(frame, 4, {}, {}) if is_flexible_response(api_key, version) else 4
        reply, _ = response_reader(api_key, version)(frame, position)
        assert isinstance(reply, Struct)
        return reply

    def _connected(self) -> socket.socket:
        if self._socket is None:
            errors = []
            for address in self._addresses:
                try:
                    self._socket, self._address = socket.create_connection(address, timeout=CONNECT_S_MAX), address
                    break
                except OSError as error:
                    errors.append(error)
            else:
                raise errors[0]
            self._socket.settimeout(REPLY_S_MAX)
        return self._socket


def _received(connection: socket.socket, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    done = 0
    while done < size:
        received = connection.recv_into(data[done:])
        if not received:
            raise BadPeer("the broker closed the connection")
        done += received
    return data
