"""S19: settings are text. Nothing in them is expanded, evaluated or read from elsewhere."""

import pytest

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

from .broker_process import BrokerProcess
from .client import Client

VALUES = [
    "${file:/etc/passwd}",
    "${file:/etc/passwd:root}",
    "${env:HOME}",
    "$(id)",
    "`id`",
    "{{7*7}}",
    "#{7*7}",
    "__import__('os').getpid()",
    "!!python/object/apply:os.getpid []",
    "cos\ngetpid\n(tR.",
    "%(asctime)s",
    "{0.__class__}",
    "../../etc/passwd",
]
KEYS = ["retention.ms", "cleanup.policy", "compression.type", "penstock.durability", "message.timestamp.type",
        "leader.replication.throttled.replicas", "min.cleanable.dirty.ratio"]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS], ids=lambda key: key.name)
@pytest.mark.parametrize(("kind", "name"), [(2, "topic"), (4, "1"), (4, "")])
def test_s19_a_value_that_looks_like_code_is_refused_or_kept_as_text(
    broker: BrokerProcess, client: Client, topic: str, value: str, key: ApiKey, kind: int, name: str
) -> None:
    name = topic if kind == 2 else name
    settings = KEYS if kind == 2 else ["num.partitions", "auto.create.topics.enable", "log.dirs", "log.retention.ms"]
    for setting in settings:
        operation = {"config_operation": 0} if key == ApiKey.INCREMENTAL_ALTER_CONFIGS else {}
        configs = [Struct(name=setting, value=value, **operation)]
        resources = [Struct(resource_type=kind, resource_name=name, configs=configs)]
        answer = client.ask(key, 1, resources=resources, validate_only=False)
        code = answer.responses[0].error_code
        assert code in (ErrorCode.none, ErrorCode.invalid_config, ErrorCode.invalid_request)
        if code == ErrorCode.none:
            assert describe(client, kind, name)[setting].value == value
        assert "root:" not in (answer.responses[0].error_message or "")


def describe(client: Client, kind: int, name: str) -> dict[str, object]:
    resources = [Struct(resource_type=kind, resource_name=name, configuration_keys=None)]
    answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=True)
    assert answer.results[0].error_code == ErrorCode.none
    return {config.name: config for config in answer.results[0].configs}


def test_s19_no_secret_is_shown(client: Client, topic: str) -> None:
    for kind, name in ((2, topic), (4, "1"), (4, "")):
        for setting, config in describe(client, kind, name).items():
            is_secret = any(word in setting for word in ("password", "secret", "jaas", "key.pem", "token"))
            assert not is_secret or config.value is None


@pytest.mark.parametrize(
    ("kind", "name"), [(4, "2"), (4, "../1"), (8, "1"), (16, "x"), (32, "g"), (0, ""), (-128, "x"), (127, "x")]
)
def test_s19_settings_of_others_are_not_there(client: Client, kind: int, name: str) -> None:
    resources = [Struct(resource_type=kind, resource_name=name, configuration_keys=None)]
    described = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
    assert described.results[0].error_code == ErrorCode.invalid_request
    resources = [Struct(resource_type=kind, resource_name=name, configs=[])]
    altered = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)
    assert altered.responses[0].error_code == ErrorCode.invalid_request


def test_s19_a_resource_asked_for_many_times_is_described_once(broker: BrokerProcess, client: Client) -> None:
    before = broker.rss_bytes()
    broker.forget_peak()
    resources = [Struct(resource_type=4, resource_name="1", configuration_keys=None)] * 5000
    reply = client.ask_raw(
        ApiKey.DESCRIBE_CONFIGS, 4, Struct(resources=resources, include_synonyms=True, include_documentation=True)
    )
    assert len(reply) < 1 << 20
    assert broker.peak_bytes() - before < 64 << 20
