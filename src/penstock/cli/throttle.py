"""The throttle of a move, set and taken away as kafka-reassign-partitions does it (KIP-73)."""

import re
import time
from collections.abc import Iterable, Mapping

from penstock.base.error_code import ErrorCode
from penstock.cli.cluster_view import ClusterView
from penstock.cli.move_plan import Layout, Partition
from penstock.cli.output import Failure
from penstock.cli.wire_client import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, PATIENCE_S, PAUSE_S, WireClient
from penstock.wire.codec import Struct

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
ALL_REPLICAS = "*"

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmg]i?)?b?(?:/s)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_rate(text: str) -> int:
    """Bytes per second of "10MB/s", "512KiB" or "1000000"; Failure when it is no rate."""
    match = _RATE.fullmatch(text.strip())
    rate = 0 if match is None else int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if not 1 <= rate < 2**63 - 1:
        raise Failure(
            f"'{text}' is no rate.", hint="Give bytes per second, for example --throttle 10MB/s", code="USAGE"
        )
    return rate


def set_throttle(client: WireClient, view: ClusterView, plan: Layout, rate: int) -> None:
    """Throttle what the plan moves, on all brokers."""
    senders: dict[str, list[str]] = {}
    receivers: dict[str, list[str]] = {}
    for partition, target in plan.items():
        before = view.partitions[partition]
        senders.setdefault(partition.topic, []).extend(_pairs(partition, before.replicas))
        receivers.setdefault(partition.topic, []).extend(_pairs(partition, set(target) - set(before.isr)))
    resources = [_resource(BROKER, str(node), SET, dict.fromkeys(RATES, str(rate))) for node in sorted(view.brokers)]
    resources += [
        _resource(TOPIC, topic, SET, {LEADERS: ",".join(senders[topic]), FOLLOWERS: ",".join(receivers[topic])})
        for topic in senders
    ]
    _alter(client, resources)


def remove_throttle(client: WireClient, view: ClusterView) -> bool:
    """Whether there was one. Who throttles all replicas of a topic (*) did that for another reason: it stays."""
    topics = sorted({partition.topic for partition in view.partitions})
    asked = [
        Struct(resource_type=TOPIC, resource_name=topic, configuration_keys=[LEADERS, FOLLOWERS]) for topic in topics
    ]
    described = client.ask(
        DESCRIBE_CONFIGS, 4, Struct(resources=asked, include_synonyms=False, include_documentation=False)
    )
    listed = [
        item.resource_name
        for item in described.results
        if any(config.value and config.value != ALL_REPLICAS for config in item.configs)
    ]
    if not listed:
        return False
    resources = [_resource(TOPIC, topic, DELETE, {LEADERS: None, FOLLOWERS: None}) for topic in listed]
    resources += [_resource(BROKER, str(node), DELETE, dict.fromkeys(RATES)) for node in sorted(view.brokers)]
    _alter(client, resources)
    return True


def _pairs(partition: Partition, nodes: Iterable[int]) -> list[str]:
    return [f"{partition.number}:{node}" for node in sorted(nodes)]


def _resource(kind: int, name: str, operation: int, configs: Mapping[str, str | None]) -> Struct:
    items = [Struct(name=key, config_operation=operation, value=value) for key, value in configs.items()]
    return Struct(resource_type=kind, resource_name=name, configs=items)


def _alter(client: WireClient, resources: list[Struct]) -> None:
    """Change the settings; topics and brokers that are gone by now need none."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        reply = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, Struct(resources=resources, validate_only=False))
        codes = {item.error_code for item in reply.responses}
        if ErrorCode.not_controller not in codes or time.monotonic() > give_up_at:
            break
        time.sleep(PAUSE_S)
    for item in reply.responses:
        # A broker that has gone is an invalid request, with these words.
        is_gone = item.resource_type == BROKER and (item.error_message or "").startswith("There is no broker")
        if item.error_code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition) and not is_gone:
            raise Failure(
                f"The throttle of {item.resource_name} cannot be changed: {item.error_message}.",
                code=ErrorCode(item.error_code).name.upper(),
            )
