"""`penstock serve`: options and a properties file in, a running broker out.

Imported by every start of the broker, so it stays free of typer, rich and confluent_kafka (see main.py).
"""

import gc
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from penstock.cli.output import Failure, program
from penstock.cli.properties import parse_properties

if TYPE_CHECKING:
    from penstock.base.config import BrokerConfig

DEFAULT_LISTEN = "localhost:9092"
DEFAULT_DATA = "./penstock-data"


class ServeOptions(TypedDict, total=False):
    listen: str | None
    advertised: str | None
    data: str | None
    config: str | None
    node_id: int | None
    zookeeper: str | None


def plain_options(arguments: Sequence[str]) -> ServeOptions | None:
    """The options when they are all well formed, None when typer should look at them (help, mistakes)."""
    options: ServeOptions = {}
    remaining = list(arguments)
    while remaining:
        name, equals, value = remaining.pop(0).partition("=")
        if not equals:
            if not remaining:
                return None
            value = remaining.pop(0)
        if name == "--listen":
            options["listen"] = value
        elif name == "--advertised":
            options["advertised"] = value
        elif name == "--data":
            options["data"] = value
        elif name == "--config":
            options["config"] = value
        elif name == "--zookeeper":
            options["zookeeper"] = value
        elif name == "--node-id" and value.isascii() and value.isdigit():
            options["node_id"] = int(value)
        else:
            return None
    return options


def serve(
    listen: str | None = None,
    advertised: str | None = None,
    data: str | None = None,
    config: str | None = None,
    node_id: int | None = None,
    zookeeper: str | None = None,
) -> int:
    """Exit code of a broker that has served until it was told to stop."""
    properties = _read_properties(config) if config is not None else {}
    if listen is not None:
        properties["listeners"] = f"PLAINTEXT://{_checked_address('--listen', listen)}"
    if advertised is not None:
        properties["advertised.listeners"] = f"PLAINTEXT://{_checked_address('--advertised', advertised)}"
    if data is not None:
        properties["log.dirs"] = data
        properties.pop("log.dir", None)
    if node_id is not None:
        properties["node.id"] = str(node_id)
        properties.pop("broker.id", None)
    if zookeeper is not None:
        properties["zookeeper.connect"] = zookeeper
    properties.setdefault("listeners", f"PLAINTEXT://{DEFAULT_LISTEN}")
    if "log.dir" not in properties:
        properties.setdefault("log.dirs", DEFAULT_DATA)
    return _run(properties)


def _run(properties: dict[str, str]) -> int:
    # What imports make stays, but for a few hundred objects, and to look for those is a seventh of a start. The broker
    # turns the collector on again.
    gc.disable()
    from socket import gethostname

    from penstock.base.config import BrokerConfig
    from penstock.base.config_key import InvalidConfig
    from penstock.base.logging import configure_logging

    configure_logging()
    try:
        config = BrokerConfig.load(properties)
        return _serve(config)
    except InvalidConfig as error:
        hint = "Settings have Kafka's names and stand in the file that --config names."
        if "advertised.listeners" in str(error):
            port = properties["listeners"].rpartition(":")[2]
            hint = f"Say by which name other machines reach this one, for example: --advertised {gethostname()}:{port}"
        raise Failure(
            f"The broker cannot start with this configuration: {error}.", hint=hint, code="INVALID_CONFIG"
        ) from error


def _serve(config: "BrokerConfig") -> int:
    from penstock.cluster.registration import NodeIdTaken
    from penstock.cluster.store.base import StoreUnavailable
    from penstock.server.broker import run
    from penstock.server.data_dir import DataDirForeign, DataDirInUse

    try:
        return run(config, on_ready=lambda port: _welcome(config, port))
    except DataDirInUse as error:
        raise Failure(
            f"Cannot use the data directory {config.data_dir}: {error}.",
            hint="Stop the other broker, or give this one its own directory with --data DIR.",
            code="DATA_DIRECTORY",
        ) from error
    except DataDirForeign as error:
        raise Failure(
            f"Cannot use the data directory {config.data_dir}: {error}.",
            hint="Give this broker its own directory with --data DIR, or join the cluster that this one is of.",
            code="DATA_DIRECTORY",
        ) from error
    except NodeIdTaken as error:
        raise Failure(
            f"Cannot join the cluster: {error}.",
            hint="Give this broker its own number with --node-id N.",
            code="NODE_ID",
        ) from error
    except StoreUnavailable as error:
        if config.zookeeper_connect is None:
            raise _explained(error, config) from error
        raise Failure(
            f"Cannot reach the cluster's ZooKeeper: {error}.",
            hint="Start it, or name its servers: --zookeeper HOST:PORT,HOST:PORT/PATH",
            code="ZOOKEEPER",
        ) from error
    except OSError as error:
        raise _explained(error, config) from error


def _read_properties(path: str) -> dict[str, str]:
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Failure(
            f"Cannot read the configuration file {path}: {reason}.",
            hint="It has one `key=value` a line, with Kafka's keys, for example: listeners=PLAINTEXT://localhost:9092",
            code="INVALID_CONFIG",
        ) from error


def _checked_address(option: str, address: str) -> str:
    host, colon, port = address.rpartition(":")
    bare_ipv6 = ":" in host and not host.startswith("[")
    if not colon or bare_ipv6 or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise Failure(
            f"{option} {address} is not an address.",
            hint=f"Give HOST:PORT, for example {option} {DEFAULT_LISTEN} or [::1]:9092.",
            code="USAGE",
        )
    return address


def _welcome(config: "BrokerConfig", port: int) -> None:
    address = _address(config, port)
    at = "" if address == DEFAULT_LISTEN else f" -b {address}"
    penstock = program()
    text = (
        f"Penstock listens on {address} and keeps its data in {config.data_dir}. Ctrl-C stops it.\n"
        f"{_elsewhere(config, port)}"
        "Try it in a second terminal:\n"
        f"  {penstock} topics create hello{at}\n"
        f"  echo 'Hello, world' | {penstock} produce hello{at}\n"
        f"  {penstock} consume hello{at} --follow\n"
    )
    with suppress(OSError):  # A broker must not stop because nobody reads its greeting.
        os.write(1, text.encode())


def _elsewhere(config: "BrokerConfig", port: int) -> str:
    """A line that says where clients go after the first contact; nothing when it is where the broker listens."""
    if config.advertised_host is None:
        return ""
    return f"All clients are sent to {_joined(config.advertised_host, config.advertised_port or port)}.\n"


def _address(config: "BrokerConfig", port: int) -> str:
    """Where a client on this machine finds the broker."""
    return _joined("localhost" if config.host in ("", "0.0.0.0", "::") else config.host, port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _explained(error: OSError, config: "BrokerConfig") -> Failure:
    import errno
    from socket import gaierror

    address, directory = _address(config, config.port), config.data_dir
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    if error.errno == errno.EADDRINUSE:
        return Failure(
            f"Cannot listen on {address}: the port is in use.",
            hint=f"Stop the other process, or choose another port: {program()} serve --listen localhost:9192",
            code="PORT_IN_USE",
        )
    unknown_host = isinstance(error, gaierror)
    if unknown_host or (error.errno in (errno.EADDRNOTAVAIL, errno.EACCES) and error.filename is None):
        return Failure(
            f"Cannot listen on {address}: {'the host name is not known' if unknown_host else reason}.",
            hint="Choose an address of this machine and a port above 1023 with --listen HOST:PORT.",
            code="CANNOT_LISTEN",
        )
    if error.filename is not None or error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        return Failure(
            f"Cannot use the data directory {directory}: {reason} ({error.filename or directory}).",
            hint="Make it writable for this user, free some space, or choose another one with --data DIR.",
            code="DATA_DIRECTORY",
        )
    return Failure(f"The broker stopped: {reason}.", hint="The log lines above say what it was doing.", code="IO_ERROR")
