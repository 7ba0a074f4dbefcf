"""docs/configuration.md, written from the tables: `python -m penstock.base.config_docs > docs/configuration.md`."""

from collections.abc import Iterable

from penstock.base.config import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS
from penstock.base.config_key import ConfigKey
from penstock.base.topic_config import TOPIC_CONFIGS

_INTRODUCTION = """\
# Configuration

Settings have Kafka's names, so that a `server.properties` and the tools you know carry over; ours start with
`penstock.`. Nothing is ignored in silence: a key that we do not know stops the start, a Kafka key that cannot apply
here (KRaft's, thread counts) is answered with one warning line, and one that would promise what we do not do (TLS,
ACLs) is refused. Values are plain text: `${...}` is never expanded.

This page is written from the tables in `src/penstock/base`; a test keeps it in step.

## Broker

In the file given to `penstock serve --config`. *Live*: can also be changed while the broker runs
(`kafka-configs --entity-type brokers --alter`).

"""

_TOPIC = """
## Topic

Set when a topic is created, or later (`kafka-configs --entity-type topics --alter`); it takes effect at once. The
broker's key gives the default of all topics that have no value of their own; the first key named is also live.

"""

_REFUSED = """
## Known and refused

Kafka's topic settings that we cannot honour. Each accepts its default alone, so that nobody relies on what is not
there.

"""


def configuration_page() -> str:
    served = [key for key in TOPIC_CONFIGS.values() if key.refused is None]
    refused = [key for key in TOPIC_CONFIGS.values() if key.refused is not None]
    return "".join(
        [
            _INTRODUCTION,
            _table(("Key", "Default", "Allowed", "Live", "Meaning"), map(_broker_row, BROKER_CONFIGS.values())),
            _TOPIC,
            _table(("Key", "Broker's key", "Default", "Allowed", "Meaning"), map(_topic_row, served)),
            _REFUSED,
            _table(("Key", "Broker's key", "Default", "Why"), map(_refused_row, refused)),
        ]
    )


def _broker_row(key: ConfigKey) -> tuple[str, ...]:
    live = "yes" if key.name in DYNAMIC_BROKER_CONFIGS else ""
    names = ", ".join([f"`{key.name}`", *(f"`{synonym.name}`" for synonym in key.synonyms)])
    return names, _code(key.default), key.rule.allowed, live, key.documentation


def _topic_row(key: ConfigKey) -> tuple[str, ...]:
    return f"`{key.name}`", _synonyms(key), _code(key.default), key.rule.allowed, key.documentation


def _refused_row(key: ConfigKey) -> tuple[str, ...]:
    return f"`{key.name}`", _synonyms(key), _code(key.default), key.refused or ""


def _synonyms(key: ConfigKey) -> str:
    return ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)


def _code(default: str | None) -> str:
    return f"`{default}`" if default else "none"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    print(configuration_page(), end="")
