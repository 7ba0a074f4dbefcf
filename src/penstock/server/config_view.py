"""Settings as DescribeConfigs and CreateTopics show them: the value in force, where it is from, and what it hides."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from penstock.base.config import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS, BrokerConfig
from penstock.base.config_key import ConfigKey, ConfigType, usable
from penstock.base.listener import Listener
from penstock.base.topic_config import BROKER_SYNONYMS, TOPIC_CONFIGS
from penstock.base.types import NodeId
from penstock.cluster.image import NO_CONFIG, ClusterImage
from penstock.cluster.records import ALL_BROKERS


class ConfigSource(IntEnum):
    """Kafka's numbers; the lower wins."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigValue(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    type: ConfigType
    documentation: str
    synonyms: list[ConfigSynonym]  # Everything that gives the setting a value, the strongest first.


def topic_configs(image: ClusterImage, overrides: Mapping[str, str], config: BrokerConfig) -> list[ConfigValue]:
    """All settings of a topic with `overrides`."""
    defaults = image.broker_config(config).topic_defaults
    overrides = usable(defaults, overrides)
    in_force = defaults.with_overrides(overrides)
    levels = _broker_levels(image, config)
    values = []
    for key in TOPIC_CONFIGS.values():
        synonyms = list(_broker_synonyms(key, levels, [synonym.name for synonym in key.synonyms]))
        if key.name in overrides:
            synonyms.insert(0, ConfigSynonym(key.name, overrides[key.name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        values.append(_value(key.name, key, in_force.text(key.name), synonyms, key.refused is not None))
    return values


def broker_configs(image: ClusterImage, config: BrokerConfig) -> list[ConfigValue]:
    """All settings of this broker, those included that give topics their defaults."""
    in_force = image.broker_config(config)
    levels = _broker_levels(image, config)
    names = {**{name: key for name, (key, _) in BROKER_SYNONYMS.items()}, **BROKER_CONFIGS}
    values = []
    for name, key in sorted(names.items()):
        aliases = [name] if name in BROKER_SYNONYMS else [name, *(synonym.name for synonym in key.synonyms)]
        synonyms = list(_broker_synonyms(key, levels, aliases))
        text = _known_now(name, image, config) or in_force.text(name)
        values.append(_value(name, key, text, synonyms, name not in DYNAMIC_BROKER_CONFIGS))
    return values


def default_broker_configs(image: ClusterImage) -> list[ConfigValue]:
    """The settings that were changed at run time for all brokers."""
    overrides = image.broker_configs.get(ALL_BROKERS, NO_CONFIG).overrides
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _value(name, _broker_key(name), value, [ConfigSynonym(name, value, source)], False)
        for name, value in sorted(overrides.items())
        if name in BROKER_CONFIGS or name in BROKER_SYNONYMS  # A version that knew more may have stored others.
    ]


def _broker_key(name: str) -> ConfigKey:
    return BROKER_CONFIGS[name] if name in BROKER_CONFIGS else BROKER_SYNONYMS[name][0]


def _known_now(name: str, image: ClusterImage, config: BrokerConfig) -> str | None:
    """The value of a setting that the broker was left to choose, once it has; None for all others."""
    if name == "cluster.id":
        return image.cluster_id
    registered = image.brokers.get(NodeId(config.node_id))
    if name == "advertised.listeners" and registered is not None:
        return str(Listener(registered.host, registered.port))  # Whatever port it was given.
    return None


def _broker_levels(image: ClusterImage, config: BrokerConfig) -> list[tuple[ConfigSource, Mapping[str, str]]]:
    own, everyone = (
        usable(config, image.broker_configs.get(stored_as, NO_CONFIG).overrides)
        for stored_as in (str(config.node_id), ALL_BROKERS)
    )
    return [
        (ConfigSource.DYNAMIC_BROKER_CONFIG, own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, everyone),
        (ConfigSource.STATIC_BROKER_CONFIG, dict(config.given)),
    ]


def _broker_synonyms(
    key: ConfigKey, levels: Iterable[tuple[ConfigSource, Mapping[str, str]]], names: list[str]
) -> Iterable[ConfigSynonym]:
    for source, values in levels:
        for name in names:
            if name in values:
                yield ConfigSynonym(name, values[name], source)
    # A unit of its own (hours) has no default of its own.
    if key.default is not None and (not names or names[0] in (key.name, key.synonym)):
        yield ConfigSynonym(names[0] if names else key.name, key.default, ConfigSource.DEFAULT_CONFIG)


def _value(
    name: str, key: ConfigKey, value: str | None, synonyms: list[ConfigSynonym], is_read_only: bool
) -> ConfigValue:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return ConfigValue(name, value, source, is_read_only, key.type, key.documentation, synonyms)
