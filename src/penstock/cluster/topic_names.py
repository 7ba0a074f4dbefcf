"""Which names a topic may have. Names become directories and metric labels, so the rules are Kafka's and strict."""

import re
from collections.abc import Iterable

NAME_LENGTH_MAX = 249  # With "-" and a partition number it still is a legal file name of 255 bytes.
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def why_illegal(name: str) -> str | None:
    """The reason for which no topic can be called `name`; None when one can."""
    if not name:
        return "Topic name is empty"
    if name in (".", ".."):
        return "Topic name cannot be '.' or '..'"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is {len(name)} characters long, allowed are {NAME_LENGTH_MAX}"
    if not _LEGAL.fullmatch(name):
        return f"Topic name {name!a} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Two names with the same key would share their metrics: Kafka writes '.' as '_' there."""
    return name.replace(".", "_")


def colliding(name: str, others: Iterable[str]) -> str | None:
    """One of `others` that differs from `name` only in '.' and '_'; None when there is none."""
    if "." not in name and "_" not in name:
        return None
    key = collision_key(name)
    return next((other for other in others if other != name and collision_key(other) == key), None)
