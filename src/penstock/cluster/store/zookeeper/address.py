"""Where an ensemble is: `host1:2181,host2,[::1]:2182/chroot`, as Kafka's zookeeper.connect."""

from typing import NamedTuple

DEFAULT_PORT = 2181


class ConnectString(NamedTuple):
    servers: tuple[tuple[str, int], ...]
    chroot: str  # Empty, or a path that starts with a slash and does not end with one.


def parse_connect_string(text: str) -> ConnectString:
    """ValueError, which says what is wrong, unless `text` names at least one server."""
    addresses, slash, rest = text.partition("/")
    chroot = f"/{rest}".rstrip("/") if slash else ""
    if any(part in ("", ".", "..") for part in chroot.split("/")[1:]):
        raise ValueError(f"{chroot!a} is not a path")
    servers = tuple(_server(address.strip()) for address in addresses.split(","))
    return ConnectString(servers, chroot)


def _server(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):  # Without a port, or an address of IPv6 without one.
        host, port = address, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{address!a} is not HOST:PORT")
    return host, int(port)
