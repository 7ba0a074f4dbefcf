"""Whom a client quota is for: a user, a client id, both together, or an address. Each can be the default, for all
who have none of their own."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
DEFAULT = ""  # No entity has an empty name, on the wire or here.
NAME_CHARACTERS_MAX = 1000  # Longer than any client id in use; each becomes part of a key in the metadata store.


class QuotaEntity(NamedTuple):
    """A name, DEFAULT, or None where the quota does not look at that."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def components(self) -> list[tuple[str, str]]:
        """Type and name of each part that is there."""
        return [(kind, name) for kind, name in zip(ENTITY_TYPES, self, strict=True) if name is not None]


def make_entity(components: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of a request, where None stands for the default; Refused when there is no such entity."""
    names: dict[str, str] = {}
    for kind, name in components:
        if kind not in ENTITY_TYPES:
            raise Refused(ErrorCode.invalid_request, f"There is no entity type {kind[:100]!a}")
        if kind in names:
            raise Refused(ErrorCode.invalid_request, f"Entity type {kind} is there twice")
        if name == "":
            raise Refused(ErrorCode.invalid_request, f"The {kind} has an empty name")
        if name is not None and len(name) > NAME_CHARACTERS_MAX:
            raise Refused(ErrorCode.invalid_request, f"The {kind} has more than {NAME_CHARACTERS_MAX} characters")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise Refused(ErrorCode.invalid_request, "The entity is empty")
    if IP in names:
        if len(names) > 1:
            raise Refused(ErrorCode.invalid_request, "An address cannot be combined with a user or a client id")
        names[IP] = canonical_ip(names[IP])
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def canonical_ip(text: str) -> str:
    """One spelling for each address. Host names are refused: a broker that asks the DNS for a client can be misled."""
    if text == DEFAULT:
        return DEFAULT
    try:
        address = ip_address(text)
    except ValueError:
        raise Refused(ErrorCode.invalid_request, f"{text[:100]!a} is not an IP address") from None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
