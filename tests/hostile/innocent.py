"""A client of its own process that does nothing wrong: one request after the other until its input ends.

Run by latency.py. A thread of the attacker's process would measure how busy that one is.
"""

import json
import select
import socket
import struct
import sys
import time


def main(port: int, broker_clock: int, error_position: int, request: bytes) -> None:
    waits_s = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as broker:
        broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            began, used_s = time.perf_counter(), time.clock_gettime(broker_clock)
            broker.sendall(request)
            reply = receive(broker, struct.unpack(">i", receive(broker, 4))[0])
            waits_s.append((time.perf_counter() - began, time.clock_gettime(broker_clock) - used_s))
            assert reply[error_position : error_position + 2] == b"\0\0", reply
    print(json.dumps(waits_s))


def receive(broker: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = broker.recv(count - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return data


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4]))
