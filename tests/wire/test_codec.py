"""The codec against kio as an oracle: same bytes for every API, version and direction."""

import dataclasses
import io
import sys
import typing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import NoneType, UnionType
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from penstock.base.errors import BadPeer
from penstock.server.api import ApiKey
from penstock.wire import codec
from penstock.wire.codec import Struct

MESSAGES = [(int(key), version) for key in ApiKey for version in schema_name_map[api_key_map[int(key)]]]
MESSAGE_IDS = [f"{ApiKey(key).name}-v{version}" for key, version in MESSAGES]


def sample_entity(entity: Any, random: Random) -> Any:
    """A kio entity with random values, valid for the wire."""
    hints = typing.get_type_hints(entity)
    return entity(
        **{field.name: sample_value(field, hints[field.name], random) for field in dataclasses.fields(entity)}
    )


def sample_value(field: Any, hint: Any, random: Random) -> Any:
    nullable = typing.get_origin(hint) in (UnionType, typing.Union)
    if nullable:
        if random.random() < 0.3:
            return None
        (hint,) = (argument for argument in typing.get_args(hint) if argument is not NoneType)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(sample_value(field, inner, random) for _ in range(random.randrange(3)))
    if dataclasses.is_dataclass(hint):
        return sample_entity(hint, random)
    return sample_primitive(field.metadata["kafka_type"], random)


def sample_primitive(kafka_type: str, random: Random) -> Any:
    bits = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}.get(kafka_type)
    if bits is not None:
        return random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))
    samples: dict[str, Any] = {
        "bool": random.random() < 0.5,
        "uint16": random.randrange(2**16),
        "string": random.choice(["", "a", "topic-é", "x" * 300]),
        "bytes": random.randbytes(random.randrange(300)),
        "records": random.randbytes(random.randrange(300)),
        "uuid": UUID(int=random.randrange(1, 2**128)),
        "error_code": random.randrange(1, 100),
        "float64": 1.5,
        "timedelta_i32": timedelta(milliseconds=random.randrange(100_000)),
        "timedelta_i64": timedelta(milliseconds=random.randrange(100_000)),
        "datetime_i64": datetime.fromtimestamp(random.randrange(2**31), UTC),
    }
    value = samples[kafka_type]
    if kafka_type == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode(value)
    return value


def encode_with_kio(entity: Any) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


@pytest.mark.parametrize(("key", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_every_message_reads_and_writes_the_bytes_that_kio_does(key: int, version: int) -> None:
    random = Random(key * 100 + version)
    for load, reader, writer in (
        (load_request_schema, codec.request_reader, codec.request_writer),
        (load_response_schema, codec.response_reader, codec.response_writer),
    ):
        for _ in range(10):
            entity = sample_entity(load(key, version), random)
            data = encode_with_kio(entity)
            decoded, position = reader(key, version)(data, 0)
            assert position == len(data)
            out = bytearray()
            writer(key, version)(out, decoded)
            assert bytes(out) == data
            assert entity_reader(load(key, version))(bytes(out), 0)[0] == entity


def test_the_schema_table_is_in_step_with_kio() -> None:
    scripts = Path(__file__).parents[2] / "scripts"
    sys.path.insert(0, str(scripts))
    try:
        import generate_schemas
    finally:
        sys.path.remove(str(scripts))
    assert generate_schemas.TABLE.read_text() == generate_schemas.render_table(), "run `make schemas`"
    assert generate_schemas.ERROR_CODES.read_text() == generate_schemas.render_error_codes(), "run `make schemas`"


def test_a_field_that_the_version_lacks_gets_its_default() -> None:
    data = bytearray()
    codec.request_writer(ApiKey.FETCH, 4)(data, Struct(max_wait_ms=1, min_bytes=2, topics=[]))
    request = codec.decode_request(ApiKey.FETCH, 4, data, 0)
    assert (request.session_epoch, request.rack_id, request.replica_state.replica_id) == (-1, "", -1)


def test_a_reply_without_a_required_field_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError, match="error_code"):
        codec.encode_response(ApiKey.API_VERSIONS, 0, Struct(api_keys=[]))


def test_a_reply_with_a_field_that_no_version_has_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="eror_code"):
        codec.encode_response(ApiKey.API_VERSIONS, 0, Struct(eror_code=0, error_code=0))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x0f\x01\x00\x00\x00",  # 2^32 - 2 topics
        b"\x00\x01\x00\xff\xff\xff\x0f",  # 2^24 tags
        b"\x00\x01\x00\x01\x05\x7f",  # a tag with 127 bytes that are not there
        b"\x00\x01\x00\x02\x05\x00\x05\x00",  # the same tag twice
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # a varint of eleven bytes
        b"\x02",  # one topic, and nothing
    ],
)
def test_absurd_counts_and_lengths_are_refused_before_memory_is_taken(data: bytes) -> None:
    with pytest.raises(BadPeer):
        codec.decode_request(ApiKey.METADATA, 12, data, 0)


def test_bytes_behind_a_request_are_passed_over_for_librdkafka_sends_some() -> None:
    # What confluent-kafka 2.16 sends for list_topics(): a topic count of four bytes where one is due.
    request = codec.decode_request(ApiKey.METADATA, 13, bytes.fromhex("00000000010000"), 0)
    assert request.topics is None
