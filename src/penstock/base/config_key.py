"""What one setting is: its name, its type, what it may hold, and why. Broker and topic settings share this shape.

Values come from property files and from clients. They are data: parsed by the rules here, never expanded or evaluated.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol, Self, TypeVar

Value = bool | int | float | str | tuple[str, ...]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
TEXT_SHOWN_MAX = 100  # Characters of a refused value in a message: enough to recognise it, too few to flood a log.

# ASCII digits only: int() alone would also take "1_000" and the digits of every script. 19 digits hold any long.
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{0,19})?", re.ASCII)


class InvalidConfig(ValueError):
    """A setting is unknown or holds what it may not; the message has the key and what is allowed."""


class ConfigType(IntEnum):
    """Kafka's numbers for DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Rule(NamedTuple):
    """How a text becomes a value. `parse` raises ValueError when the text is not `allowed`."""

    type: ConfigType
    allowed: str
    parse: Callable[[str], Value]


class Synonym(NamedTuple):
    """A broker setting that gives a topic setting its default."""

    name: str
    factor: int = 1  # The topic's value is the broker's times this: 3,600,000 for hours.


class ConfigKey(NamedTuple):
    name: str
    rule: Rule
    default: str | None  # As text, the way it is shown; None: there is none.
    documentation: str
    synonyms: tuple[Synonym, ...] = ()  # The strongest first.
    refused: str | None = None  # Why nothing but the default is accepted.

    @property
    def type(self) -> ConfigType:
        return self.rule.type

    @property
    def attribute(self) -> str:
        return self.name.removeprefix("penstock.").replace(".", "_")

    @property
    def synonym(self) -> str | None:
        return self.synonyms[0].name if self.synonyms else None

    def parse(self, text: str, given_as: str | None = None) -> Value:
        """The value that `text` stands for; InvalidConfig when this key may not hold it."""
        name = given_as or self.name
        try:
            value = self.rule.parse(text.strip())
        except ValueError:
            shown = ascii(text[:TEXT_SHOWN_MAX])
            raise InvalidConfig(f"{name} is {shown}, allowed is {self.rule.allowed}") from None
        if self.refused is not None and render(value) != self.default:
            raise InvalidConfig(f"{name} can only be {self.default!r}: {self.refused}")
        return value


def render(value: Value) -> str:
    """The text of a value, the way Kafka shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


class Overridable(Protocol):
    """Settings that others can be laid over."""

    def with_overrides(self, overrides: Mapping[str, str]) -> Self: ...


_Settings = TypeVar("_Settings", bound=Overridable)


def with_stored(settings: _Settings, overrides: Mapping[str, str]) -> _Settings:
    """The settings with those of the cluster on top, but for what cannot be used.

    Each was accepted when it was stored, by a version that may have known more. The others must hold all the same:
    without its retention a topic would lose records.
    """
    try:
        return settings.with_overrides(overrides)
    except InvalidConfig:
        return settings.with_overrides(usable(settings, overrides))


def usable(settings: Overridable, overrides: Mapping[str, str]) -> dict[str, str]:
    """What `with_stored` does not leave out."""
    left_out = unusable(settings, overrides)
    return {name: text for name, text in overrides.items() if name not in left_out}


def unusable(settings: Overridable, overrides: Mapping[str, str]) -> dict[str, InvalidConfig]:
    """What `with_stored` leaves out, and why."""
    try:
        settings.with_overrides(overrides)
    except InvalidConfig:
        return dict(_refused(settings, overrides))
    return {}


def _refused(settings: Overridable, overrides: Mapping[str, str]) -> Iterator[tuple[str, InvalidConfig]]:
    for name, text in overrides.items():
        try:
            settings.with_overrides({name: text})
        except InvalidConfig as error:
            yield name, error


def by_name(keys: tuple[ConfigKey, ...]) -> Mapping[str, ConfigKey]:
    table = {key.name: key for key in keys}
    assert len(table) == len(keys), "a key is listed twice"
    return table


# Rules ----------------------------------------------------------------------------------------------------------------


def boolean() -> Rule:
    def parse(text: str) -> bool:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ValueError
        return lowered == "true"

    return Rule(ConfigType.BOOLEAN, "true or false", parse)


def integer(at_least: int, at_most: int = INT_MAX) -> Rule:
    return Rule(ConfigType.INT, _range(at_least, at_most), _integer_parser(at_least, at_most))


def long(at_least: int, at_most: int = LONG_MAX) -> Rule:
    return Rule(ConfigType.LONG, _range(at_least, at_most), _integer_parser(at_least, at_most))


def double(at_least: float, at_most: float) -> Rule:
    def parse(text: str) -> float:
        if not _DECIMAL.fullmatch(text):
            raise ValueError
        value = float(text)
        if not at_least <= value <= at_most:
            raise ValueError
        return value

    return Rule(ConfigType.DOUBLE, f"a number from {at_least} to {at_most}", parse)


def one_of(*options: str) -> Rule:
    def parse(text: str) -> str:
        if text not in options:
            raise ValueError
        return text

    return Rule(ConfigType.STRING, f"one of {', '.join(options)}", parse)


def list_of(*options: str) -> Rule:
    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        if len(set(items)) != len(items) or not set(items) <= set(options):
            raise ValueError
        return items

    return Rule(ConfigType.LIST, f"a list of {', '.join(options)}, each at most once", parse)


def text(pattern: str, allowed: str) -> Rule:
    compiled = re.compile(pattern, re.ASCII)

    def parse(given: str) -> str:
        if not compiled.fullmatch(given):
            raise ValueError
        return given

    return Rule(ConfigType.STRING, allowed, parse)


def list_matching(pattern: str, allowed: str) -> Rule:
    """A list of items that all match."""
    compiled = re.compile(pattern, re.ASCII)

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        if not all(compiled.fullmatch(item) for item in items):
            raise ValueError
        return items

    return Rule(ConfigType.LIST, allowed, parse)


def _integer_parser(at_least: int, at_most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError
        value = int(text)
        if not at_least <= value <= at_most:
            raise ValueError
        return value

    return parse


def _range(at_least: int, at_most: int) -> str:
    return f"a whole number from {at_least} to {at_most}"
