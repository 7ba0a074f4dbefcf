"""Decisions about settings that are changed at run time: of topics, and of brokers as far as they follow.

Pure: an image and alterations in; store writes and one result per resource out. A value is text, checked by the rule of
its key and never expanded. Of a broker's settings those can be changed that are read from the image each time.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.base.config import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS, BrokerConfig
from penstock.base.config_key import ConfigKey, ConfigType, InvalidConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.topic_config import (
    BROKER_SYNONYMS,
    TOPIC_CONFIGS,
    parse_topic_config,
)
from penstock.cluster import records
from penstock.cluster.image import NO_CONFIG, ClusterImage
from penstock.cluster.plan import Plan
from penstock.cluster.store.base import Check, Delete, Put
from penstock.cluster.topic_plan import existing_topic

ALL_BROKERS_NAME = ""  # On the wire; in the store it is records.ALL_BROKERS.

# Not served, so there is nothing to delete. kafka-reassign-partitions deletes it after each move, set or not.
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2  # Of lists only.
    SUBTRACT = 3  # Of lists only.


class ConfigOperation(NamedTuple):
    name: str
    operation: int
    value: str | None


class AlterConfig(NamedTuple):
    resource_type: int
    resource_name: str
    operations: Sequence[ConfigOperation]
    replaces_all: bool = False  # The operations are all SET, and what they do not mention returns to its default.


class ConfigResult(NamedTuple):
    resource_type: int
    resource_name: str
    code: ErrorCode = ErrorCode.none
    message: str | None = None


def plan_alter_configs(
    image: ClusterImage, alterations: Sequence[AlterConfig], config: BrokerConfig
) -> Plan[ConfigResult]:
    """Resources altered and refused; in one resource either all operations take effect or none."""
    plan: Plan[ConfigResult] = Plan()
    counts = Counter((alteration.resource_type, alteration.resource_name) for alteration in alterations)
    for resource, alteration in {(item.resource_type, item.resource_name): item for item in alterations}.items():
        try:
            if counts[resource] > 1:
                raise Refused(ErrorCode.invalid_request, "The resource is in the request more than once")
            _plan_one(plan, image, alteration, config)
        except InvalidConfig as error:
            plan.results.append(ConfigResult(*resource, ErrorCode.invalid_config, str(error)))
        except Refused as error:
            plan.results.append(ConfigResult(*resource, error.code, error.message))
        else:
            plan.results.append(ConfigResult(*resource))
    return plan


def _plan_one(plan: Plan[ConfigResult], image: ClusterImage, alteration: AlterConfig, config: BrokerConfig) -> None:
    if alteration.resource_type == ResourceType.TOPIC:
        _plan_topic(plan, image, alteration, config)
    elif alteration.resource_type == ResourceType.BROKER:
        _plan_broker(plan, image, alteration, config)
    else:
        raise Refused(
            ErrorCode.invalid_request,
            f"Settings of resource type {alteration.resource_type} cannot be changed, only those of topics and brokers",
        )


def _plan_topic(plan: Plan[ConfigResult], image: ClusterImage, alteration: AlterConfig, config: BrokerConfig) -> None:
    name = alteration.resource_name
    topic = existing_topic(image, name)
    defaults = image.broker_config(config).topic_defaults
    overrides = _altered(topic.config, alteration, _topic_setting, lambda key: defaults.text(key.name))
    parse_topic_config(overrides, defaults)
    plan.checks.append(Check(records.topic_key(name), topic.version))
    _write(plan, records.topic_config_key(name), topic.config_version, topic.config, overrides)


def _plan_broker(plan: Plan[ConfigResult], image: ClusterImage, alteration: AlterConfig, config: BrokerConfig) -> None:
    name = alteration.resource_name
    if name != ALL_BROKERS_NAME and name not in {str(node_id) for node_id in image.brokers}:
        raise Refused(ErrorCode.invalid_request, f"There is no broker {name[:100]!a}")
    stored_as = name or records.ALL_BROKERS
    old = image.broker_configs.get(stored_as, NO_CONFIG)
    overrides = _altered(old.overrides, alteration, _broker_setting, lambda key: config.text(key.synonym or "") or "")
    parse_topic_config({}, config.with_overrides(overrides).topic_defaults)
    _write(plan, records.broker_config_key(stored_as), old.version, old.overrides, overrides)


def _topic_setting(name: str) -> ConfigKey:
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise InvalidConfig(f"{name[:100]!a} is not a topic setting")
    return key


def _broker_setting(name: str) -> ConfigKey:
    if name not in DYNAMIC_BROKER_CONFIGS:
        known = name in BROKER_CONFIGS or name in BROKER_SYNONYMS
        reason = "is read when the broker starts" if known else "is not a broker setting"
        raise Refused(ErrorCode.invalid_request, f"{name[:100]!a} cannot be changed at run time: it {reason}")
    return BROKER_CONFIGS[name] if name in BROKER_CONFIGS else BROKER_SYNONYMS[name][0]


def _altered(
    old: Mapping[str, str],
    alteration: AlterConfig,
    setting: Callable[[str], ConfigKey],
    default: Callable[[ConfigKey], str],
) -> dict[str, str]:
    """The overrides after the operations."""
    names = [operation.name for operation in alteration.operations]
    if len(set(names)) != len(names):
        raise Refused(ErrorCode.invalid_request, "A setting is in the request more than once")
    overrides = {} if alteration.replaces_all else dict(old)
    for name, operation, value in alteration.operations:
        if operation == Operation.DELETE and (name in overrides or name == LOG_DIRS_RATE):
            overrides.pop(name, None)  # Even one that only a version knew that was here before.
            continue
        key = setting(name)
        if operation == Operation.DELETE:
            continue
        if value is None:
            raise Refused(ErrorCode.invalid_request, f"{name} has no value")
        if operation == Operation.SET:
            overrides[name] = value
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            if key.type is not ConfigType.LIST:
                raise Refused(ErrorCode.invalid_request, f"{name} is not a list, so it can only be set or deleted")
            current = overrides[name] if name in overrides else default(key)
            overrides[name] = _list_change(Operation(operation), current, value)
        else:
            raise Refused(ErrorCode.invalid_request, f"There is no operation {operation}")
    return overrides


def _list_change(operation: Operation, current: str, value: str) -> str:
    items = _items(current)
    given = _items(value)
    if operation is Operation.APPEND:
        return ",".join(items + [item for item in given if item not in items])
    return ",".join(item for item in items if item not in given)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _write(
    plan: Plan[ConfigResult], key: str, version: int, old: Mapping[str, str], overrides: Mapping[str, str]
) -> None:
    if overrides == old:
        return
    plan.checks.append(Check(key, version))
    plan.writes.append(Put(key, records.encode(overrides)) if overrides else Delete(key))
