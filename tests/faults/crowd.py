"""A process that opens many connections to a broker, has each of them answered once, and keeps them idle.

`python -m faults.crowd PORT COUNT` (with `tests` on the path) prints "ready" when all have been answered, and lives
until its stdin is closed.
"""

import resource
import socket
import sys

from .raw_client import API_VERSIONS, connect, receive

ADDRESSES = 16  # Source addresses of 127.0.0.0/8: each has ephemeral ports of its own.
AT_ONCE = 200  # Connections whose answers are awaited together; below the broker's backlog.


def open_connections(port: int, count: int) -> list[socket.socket]:
    connections: list[socket.socket] = []
    while len(connections) < count:
        fresh = []
        for number in range(min(AT_ONCE, count - len(connections))):
            connection = connect(port, source=f"127.0.0.{1 + number % ADDRESSES}")
            connection.sendall(API_VERSIONS)
            fresh.append(connection)
        for connection in fresh:
            receive(connection)
        connections += fresh
    return connections


def raise_file_limit(needed: int) -> int:
    """Allow this process `needed` descriptors if the system does; gives what it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed)


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    raise_file_limit(count + 100)
    connections = open_connections(port, count)
    print("ready", flush=True)
    sys.stdin.read()
    for connection in connections:
        connection.close()


if __name__ == "__main__":
    main()
