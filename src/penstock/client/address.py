"""Whether a broker can be reached. librdkafka would keep trying in silence, so we look first."""

import logging
import socket
from collections.abc import Mapping
from typing import Any

from penstock.client.errors import ClientError, Unreachable

CONNECT_TIMEOUT_S = 5.0
DEFAULT_PORT = 9092

log = logging.getLogger("penstock.client.librdkafka")
# One set of settings serves producers and consumers; each would warn of what is meant for the other. And a coordinator
# that is not ready for a new producer yet is asked again, without harm.
log.addFilter(lambda record: "CONFWARN" not in record.getMessage() and not _is_patience(record.getMessage()))


def check_reachable(bootstrap_servers: str) -> None:
    """Return when one of the addresses takes a connection; Unreachable with the reasons when none does."""
    reasons = []
    for address in bootstrap_servers.split(","):
        host, port = _host_and_port(address.strip())
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(_reason(error))
        else:
            return
    raise Unreachable(
        f"Cannot reach a broker at {bootstrap_servers}: {'; '.join(dict.fromkeys(reasons))}.",
        "Is it running? `penstock serve` starts one on localhost:9092.",
    )


def client_settings(bootstrap_servers: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What every librdkafka client here gets. Its log goes to Python's, not to stderr."""
    return {"bootstrap.servers": bootstrap_servers, "client.id": "penstock", "logger": log, **settings}


def _is_patience(line: str) -> bool:
    return "GETPID" in line and line.endswith("retrying")


def _host_and_port(address: str) -> tuple[str, int]:
    address = address.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ClientError(f"{address!r} is not the address of a broker.", 'Give "host:port"; several with commas.')
    return host.strip("[]"), int(port)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:.0f} seconds"
    return (error.strerror or str(error)).lower()
