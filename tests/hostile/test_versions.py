"""Every served version of every API: well-formed in, well-formed out, as kio's own reader and writer see it."""

from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from penstock.base.errors import ErrorCode
from penstock.server.api import APIS, ApiKey
from penstock.wire.codec import Struct

from .client import Client, framed, read_reply, request_frame
from .samples import SERVED, SERVED_IDS, makes_sense, sample

EXPECTED_ERRORS = {
    ApiKey.DELETE_TOPICS: ErrorCode.unknown_topic_or_partition,
    ApiKey.SASL_HANDSHAKE: ErrorCode.unsupported_sasl_mechanism,
    ApiKey.SASL_AUTHENTICATE: ErrorCode.illegal_sasl_state,
    ApiKey.ALTER_REPLICA_LOG_DIRS: ErrorCode.log_dir_not_found,
    ApiKey.ELECT_LEADERS: ErrorCode.election_not_needed,
    ApiKey.ALTER_PARTITION: ErrorCode.cluster_authorization_failed,
    ApiKey.ENVELOPE: ErrorCode.cluster_authorization_failed,
}


def _topic_id(client: Client, topic: str) -> UUID:
    answer = client.ask(
        ApiKey.METADATA,
        12,
        topics=[Struct(topic_id=UUID(int=0), name=topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    found: UUID = answer.topics[0].topic_id
    return found


def _error_codes(answer: object) -> list[int]:
    """Every error code in an answer, however deep."""
    found: list[int] = []
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if name.endswith("error_code") and value is not None:
            found.append(int(value))
        for item in value if isinstance(value, tuple) else (value,):
            found += _error_codes(item)
    return found


@pytest.mark.parametrize(("key", "version"), SERVED, ids=SERVED_IDS)
def test_a_well_formed_request_gets_a_well_formed_answer(client: Client, topic: str, key: int, version: int) -> None:
    topic_id = _topic_id(client, topic)
    client.produce(topic, sample(ApiKey.PRODUCE, 9, topic).topic_data[0].partition_data[0].records)
    request = sample(key, version, topic, topic_id)
    answer = read_reply(key, version, client.ask_raw(key, version, request), client._correlation_id)
    codes = {ErrorCode(code) for code in _error_codes(answer)}
    expected = {EXPECTED_ERRORS[key]} if key in EXPECTED_ERRORS else set()
    assert codes - {ErrorCode.none} == expected or not makes_sense(key)


@pytest.mark.parametrize(("key", "version"), SERVED, ids=SERVED_IDS)
def test_kio_reads_the_same_bytes_that_our_writer_makes(key: int, version: int) -> None:
    frame = request_frame(key, version, sample(key, version), client_id=None)
    start = 10 + (1 if load_request_schema(key, version).__flexible__ else 0)
    _, size = entity_reader(load_request_schema(key, version))(frame, start)
    assert start + size == len(frame)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_v0(client: Client, version: int) -> None:
    body = request_frame(18, 4, sample(18, 4), correlation_id=7)
    client.send(framed(body[:2] + version.to_bytes(2, "big", signed=True) + body[4:]))
    answer = read_reply(18, 0, client.receive(), 7)
    assert answer.error_code == ErrorCode.unsupported_version
    assert [(item.api_key, item.min_version, item.max_version) for item in answer.api_keys] == [(18, 0, 4)]
    # The same connection goes on with a version that the answer names.
    assert client.ask(ApiKey.API_VERSIONS, 4, client_software_name="a", client_software_version="1").error_code == 0


@pytest.mark.parametrize("key", [9999, -1, 4, 5, 6, 7, 52, 57, 32767, -32768])
def test_an_api_key_that_is_not_served_closes_the_connection(client: Client, key: int) -> None:
    """Key 7 (ControlledShutdown v0) would have the one request header without a client id."""
    assert key not in APIS
    client.send(framed(key.to_bytes(2, "big", signed=True) + request_frame(18, 0, sample(18, 0))[2:]))
    assert client.is_closed_by_broker()


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key in sorted(APIS) if key != 18 for version in (APIS[key].versions.stop, 32767, -1)]
    + [(int(ApiKey.PRODUCE), 0), (int(ApiKey.PRODUCE), 2), (int(ApiKey.FETCH), 3)],
)
def test_a_version_that_is_not_served_closes_the_connection(client: Client, key: int, version: int) -> None:
    body = request_frame(key, APIS[key].versions[-1], sample(key, APIS[key].versions[-1]))
    client.send(framed(body[:2] + version.to_bytes(2, "big", signed=True) + body[4:]))
    assert client.is_closed_by_broker()


def test_what_is_advertised_is_what_is_served(client: Client) -> None:
    answer = client.ask(ApiKey.API_VERSIONS, 4, client_software_name="a", client_software_version="1")
    advertised = {(item.api_key, item.min_version, item.max_version) for item in answer.api_keys}
    assert advertised == {(key, api.advertised_min, api.versions[-1]) for key, api in APIS.items() if api.is_advertised}
