"""The blocking client against brokers that break off, answer nonsense, or are not there."""

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from penstock.cli import wire_client
from penstock.cli.output import Failure
from penstock.cli.wire_client import LIST_PARTITION_REASSIGNMENTS, WireClient
from penstock.wire.codec import Struct, encode_response
from ports import free_port

REQUEST = Struct(timeout_ms=1000, topics=None)
Answer = Callable[[bytes], bytes | None]


def answers(*replies: Answer) -> int:
    """The port of a server that takes one connection after the other, and closes each after one reply, or none."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server:
            for reply in replies:
                connection, _ = server.accept()
                with connection:
                    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                    sent = reply(connection.recv(size, socket.MSG_WAITALL))
                    if sent is not None:
                        connection.sendall(sent)

    threading.Thread(target=serve, daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def reply_with(error_code: int) -> Answer:
    def reply(request: bytes) -> bytes:
        body = encode_response(
            LIST_PARTITION_REASSIGNMENTS, 0, Struct(error_code=error_code, error_message=None, topics=[])
        )
        frame = request[4:8] + b"\0" + body
        return struct.pack(">i", len(frame)) + frame

    return reply


def test_nobody_listens() -> None:
    with pytest.raises(Failure, match="Cannot reach a broker"):
        WireClient(f"127.0.0.1:{free_port()}").ask(LIST_PARTITION_REASSIGNMENTS, 0, REQUEST)


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda request: None,
        lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda request: struct.pack(">i", 0),
        lambda request: struct.pack(">ii", 4, 99),
        lambda request: struct.pack(">i", 5) + request[4:8] + b"\xff",
        lambda request: struct.pack(">i", 2000) + b"cut short",
    ],
)
def test_what_is_no_broker_is_not_waited_for(nonsense: Answer) -> None:
    with pytest.raises(Failure, match="Cannot reach a broker"):
        WireClient(f"127.0.0.1:{answers(nonsense)}").ask(LIST_PARTITION_REASSIGNMENTS, 0, REQUEST)


def test_a_cluster_that_has_answered_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_client, "PAUSE_S", 0.01)
    port = answers(reply_with(0), lambda request: None, reply_with(41), reply_with(7))
    client = WireClient(f"127.0.0.1:{port}")
    assert client.ask(LIST_PARTITION_REASSIGNMENTS, 0, REQUEST).error_code == 0
    # The connection is closed, the next one too, and the third does not know a controller (41).
    assert client.ask(LIST_PARTITION_REASSIGNMENTS, 0, REQUEST).error_code == 7
    client.close()


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_client, "PAUSE_S", 0.01)
    client = WireClient(f"127.0.0.1:{answers(reply_with(0), *[reply_with(41)] * 100)}", patience_s=0.05)
    assert client.ask(LIST_PARTITION_REASSIGNMENTS, 0, REQUEST).error_code == 0
    with pytest.raises(Failure, match="nobody controls the cluster"):
        client.ask(LIST_PARTITION_REASSIGNMENTS, 0, REQUEST)
    client.close()
