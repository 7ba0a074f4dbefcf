"""S5: texts that would harm who prints them. Accepted or refused, and never seen raw in the log."""

import pytest

from penstock.base.errors import ErrorCode
from penstock.base.logging import _plain
from penstock.server.api import ApiKey
from penstock.wire.batch import Header, Record, build_batch
from penstock.wire.codec import Struct

from .broker_process import BrokerProcess
from .client import Client, framed, read_reply, request_frame
from .samples import sample

TEXTS = {
    "invalid UTF-8": b"\xff\xfe\xc3\x28",
    "NUL": b"a\0b",
    "line ends": b"a\r\nERROR forged: line",
    "ANSI escapes": b"\x1b[2J\x1b]0;owned\x07",
    "32 KiB": b"x" * 32767,
    "HTML": b"<script>alert(1)</script>",
    "right-to-left override": "\u202egpj.exe".encode(),
    "format strings": b"%s%n {0.__class__} ${jndi:ldap://127.0.0.1/x}",
}


def check_log_is_inert(broker: BrokerProcess) -> None:
    log = broker.stderr()
    assert not any(character in log for character in "\x00\x1b\x07\r\u202e")
    assert "\nERROR forged" not in log


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("version", [0, 4])
def test_s5_any_client_id_is_served_and_logged_inert(
    broker: BrokerProcess, client: Client, text: bytes, version: int
) -> None:
    client.send(framed(request_frame(18, version, sample(18, version), correlation_id=3, client_id=text)))
    assert read_reply(18, version, client.receive(), 3).error_code == ErrorCode.none
    check_log_is_inert(broker)


@pytest.mark.parametrize("text", [text for text in TEXTS.values() if len(text) < 32767])  # A long name is plain.
def test_s5_a_client_software_name_that_is_not_plain_is_refused(client: Client, text: bytes) -> None:
    request = request_frame(18, 3, Struct(client_software_name="@", client_software_version="1"), correlation_id=3)
    place = request.rindex(b"\x02@")
    body = request[:place] + bytes((len(text) + 1,)) + text + request[place + 2 :]
    client.send(framed(body))
    if text == TEXTS["invalid UTF-8"]:
        assert client.is_closed_by_broker()
    else:
        assert read_reply(18, 3, client.receive(), 3).error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_s5_any_key_value_and_header_comes_back_as_it_was(client: Client, topic: str, text: bytes) -> None:
    name = text.decode(errors="surrogateescape")
    batch = build_batch(
        [Record(0, 1_000, text, text, [Header(name, text)]), Record(1, 1_000, text, text, [Header(name, None)])],
        base_offset=0,
        leader_epoch=-1,
    )
    code, offset = client.produce(topic, batch)
    assert (code, offset) == (0, 0)
    assert client.fetch(topic, 0, wait_ms=5000).records[61:] == bytes(batch[61:])


@pytest.mark.parametrize("text", [text for text in TEXTS.values() if text != TEXTS["invalid UTF-8"]])
def test_s5_a_topic_name_that_is_not_plain_is_refused_and_echoed_as_it_was(
    broker: BrokerProcess, client: Client, text: bytes
) -> None:
    name = text.decode()
    answer = client.ask(ApiKey.METADATA, 4, topics=[Struct(name=name)], allow_auto_topic_creation=True)
    assert (answer.topics[0].error_code, answer.topics[0].name) == (ErrorCode.invalid_topic_exception, name)
    check_log_is_inert(broker)


@pytest.mark.parametrize("version", [3, 8, 9, 12])
@pytest.mark.parametrize("name", ["x" * 32767, "\U0001f600" * 8191, "\0" * 32767])
def test_s5_the_longest_topic_name_is_answered(client: Client, version: int, name: str) -> None:
    assert client.produce(name, b"", version=version)[0] == ErrorCode.unknown_topic_or_partition
    assert client.fetch(name, 0, version=11).error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_s5_long_names_in_create_topics_are_answered(client: Client, version: int) -> None:
    for name in ("x" * 32767, "\U0001f600" * 249, "\U0001f600" * 8191):
        entry = Struct(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        answer = client.ask(ApiKey.CREATE_TOPICS, version, topics=[entry], timeout_ms=1, validate_only=False)
        assert answer.topics[0].error_code == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize("version", [0, 1])
def test_s5_long_settings_are_refused_in_short_words(client: Client, topic: str, version: int) -> None:
    for name, value in (("x" * 32767, "1"), ("retention.ms", "\U0001f600" * 8191), ("cleanup.policy", "," * 32767)):
        configs = [Struct(name=name, config_operation=0, value=value)]
        resources = [Struct(resource_type=2, resource_name=topic, configs=configs)]
        answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=resources, validate_only=False)
        assert answer.responses[0].error_code == ErrorCode.invalid_config
        assert len(answer.responses[0].error_message) < 2000


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_s5_log_values_are_escaped(text: bytes) -> None:
    shown = _plain(text.decode(errors="replace"))
    assert shown.isascii()
    assert shown.isprintable()
