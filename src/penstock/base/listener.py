"""One address in Kafka's notation, `PLAINTEXT://host:port`."""

import re
from typing import NamedTuple

from penstock.base.config_key import InvalidConfig

# An IPv6 address stands in brackets. The host may be empty: every address of the machine.
_LISTENER = re.compile(r"([A-Za-z_]+)://(?:\[([0-9A-Fa-f:.%a-z]+)\]|([A-Za-z0-9._-]*)):([0-9]{1,5})", re.ASCII)


class Listener(NamedTuple):
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in ("", "0.0.0.0", "::")

    def __str__(self) -> str:
        return f"PLAINTEXT://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_listener(key: str, text: str) -> Listener:
    """The one listener in `text`; InvalidConfig for several, for another protocol, and for what is no address."""
    if "," in text:
        raise InvalidConfig(f"{key} is {text[:100]!a}, allowed is one listener: several are not served yet")
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[4]) > 65_535:
        raise InvalidConfig(f"{key} is {text[:100]!a}, allowed is PLAINTEXT://host:port")
    if match[1].upper() != "PLAINTEXT":
        raise InvalidConfig(f"{key} is {text[:100]!a}, allowed is PLAINTEXT: TLS and SASL are not served yet")
    return Listener(match[2] or match[3], int(match[4]))
