"""Kafka messages to and from bytes: kio's schemas, read and written by code that survives hostile input.

kio's own decoder reserves memory for as many elements as an array claims to have, and one five-byte claim ends the
process (docs/adr/0001). Here a count is checked against the bytes that are left before anything is made.

Every version of a message has one shape, a `Struct` with Kafka's field names in snake case: a field that the version
read does not have gets its schema default, and a field that the version written does not have is left out. Durations
and times are integers that end in `_ms`.
"""

import dataclasses
import struct
import typing
from collections.abc import Callable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from penstock.base.errors import BadPeer
from penstock.wire.varint import InvalidVarint, read_uvarint, write_uvarint

Buffer = bytes | bytearray | memoryview
Reader = Callable[[Buffer, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

TAGS_MAX = 64  # Kafka defines fewer than ten for any message; more is an attack on the loop that skips them.
ZERO_UUID = UUID(int=0)


class Struct:
    """A message or a part of one: attributes are the fields. Handlers read requests and build replies with it."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    if typing.TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __repr__(self) -> str:
        return f"Struct({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Struct) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


def decode_request(api_key: int, version: int, data: Buffer, position: int) -> Struct:
    """The request body at `position`; BadPeer when it is cut short, malformed or followed by other bytes."""
    reader = request_reader(api_key, version)
    try:
        request, position = reader(data, position)
    except (struct.error, IndexError, InvalidVarint, UnicodeDecodeError) as error:
        raise BadPeer(f"request of api {api_key} v{version} cannot be read: {error}") from error
    if position != len(data):
        raise BadPeer(f"{len(data) - position} bytes follow the request of api {api_key} v{version}")
    assert isinstance(request, Struct)
    return request


def encode_response(api_key: int, version: int, response: Struct) -> bytearray:
    out = bytearray()
    response_writer(api_key, version)(out, response)
    return out


@cache
def request_reader(api_key: int, version: int) -> Reader:
    # Some fields come and go again (Metadata had one in v8 to v10 alone), so all versions are looked at.
    relatives = [load_request_schema(api_key, relative) for relative in schema_name_map[api_key_map[api_key]]]
    return _entity_reader(load_request_schema(api_key, version), relatives)


@cache
def response_writer(api_key: int, version: int) -> Writer:
    return _entity_writer(load_response_schema(api_key, version))


@cache
def response_reader(api_key: int, version: int) -> Reader:
    """For those who play the client: tests, simulation, and later the followers."""
    return _entity_reader(load_response_schema(api_key, version))


@cache
def request_writer(api_key: int, version: int) -> Writer:
    return _entity_writer(load_request_schema(api_key, version))


# Fields of a schema ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    kafka_type: str | None  # None for a nested entity
    entity: type | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any
    is_optional: bool  # The writer may leave it to its default.


@cache
def _fields(entity: type) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(entity)
    return tuple(_describe(field, hints[field.name]) for field in dataclasses.fields(entity))


def _describe(field: "dataclasses.Field[Any]", hint: Any) -> _Field:
    hint, is_nullable = _without_none(hint)
    is_array = typing.get_origin(hint) is tuple
    if is_array:
        hint, _ = _without_none(typing.get_args(hint)[0])
    entity: type | None = hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None
    kafka_type = field.metadata.get("kafka_type")
    name = field.name
    if kafka_type in ("timedelta_i32", "timedelta_i64", "datetime_i64"):
        name = f"{name}_ms"
    tag = field.metadata.get("tag")
    default = _plain_default(field.default, kafka_type, entity, is_array, is_nullable)
    is_optional = field.default is not dataclasses.MISSING or is_array or name == "throttle_time_ms"
    return _Field(name, kafka_type, entity, is_array, is_nullable, tag, default, is_optional)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (UnionType, typing.Union):
        inner = [argument for argument in typing.get_args(hint) if argument is not NoneType]
        return inner[0], True
    return hint, False


def _plain_default(default: Any, kafka_type: str | None, entity: Any, is_array: bool, is_nullable: bool) -> Any:
    """What a field holds when its version or its tag is absent, in the shape that `Struct` has."""
    if default is not dataclasses.MISSING:
        if default is None:
            if kafka_type == "uuid":
                return ZERO_UUID
            return -1 if kafka_type == "datetime_i64" else None
        if is_array:
            return ()
        if kafka_type in ("timedelta_i32", "timedelta_i64"):
            return round(default.total_seconds() * 1000)
        if kafka_type == "datetime_i64":
            return round(default.timestamp() * 1000)
        if entity is not None:
            return Struct(**{field.name: field.default for field in _fields(entity)})
        return default
    if is_array:
        return ()
    if entity is not None:
        return None if is_nullable else Struct(**{field.name: field.default for field in _fields(entity)})
    if is_nullable and kafka_type in ("string", "bytes", "records"):
        return None
    zeros: dict[str | None, Any] = {"string": "", "bytes": b"", "records": None, "bool": False, "uuid": ZERO_UUID}
    return zeros.get(kafka_type, 0)


# Reading --------------------------------------------------------------------------------------------------------------


def _entity_reader(entity: Any, relatives: Sequence[type] = ()) -> Reader:
    """A reader of `entity`; fields that only its `relatives` in other versions have are filled in by default."""
    flexible: bool = entity.__flexible__
    plain = []
    tagged = {}
    defaults = {field.name: field.default for relative in relatives for field in _fields(relative)}
    for field in _fields(entity):
        reader = _field_reader(field, flexible, _relatives_of(field, relatives))
        if field.tag is None:
            plain.append((field.name, reader))
            defaults.pop(field.name, None)
        else:
            tagged[field.tag] = (field.name, reader)
            defaults[field.name] = field.default

    def read_entity(data: Buffer, position: int) -> tuple[Struct, int]:
        result = Struct()
        fields = result.__dict__
        fields.update(defaults)
        for name, reader in plain:
            fields[name], position = reader(data, position)
        if flexible:
            position = read_tags(data, position, tagged, fields)
        return result, position

    return read_entity


def _relatives_of(field: _Field, relatives: Sequence[type]) -> list[type]:
    """The entities that stand in the place of `field` in other versions."""
    return [
        other.entity
        for relative in relatives
        for other in _fields(relative)
        if other.name == field.name and other.entity is not None
    ]


def read_tags(data: Buffer, position: int, known: dict[int, tuple[str, Reader]], fields: dict[str, Any]) -> int:
    """Put the known tagged fields into `fields`, skip the others, and give the position after them."""
    if data[position] == 0:
        return position + 1
    count, position = read_uvarint(data, position)
    if count > TAGS_MAX:
        raise BadPeer(f"{count} tagged fields, {TAGS_MAX} are allowed")
    previous = -1
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        end = position + size
        if tag <= previous or end > len(data):
            raise BadPeer(f"tag {tag} after {previous} with {size} bytes, {len(data) - position} are left")
        previous = tag
        if tag in known:
            name, reader = known[tag]
            fields[name], stop = reader(data, position)
            if stop != end:
                raise BadPeer(f"tag {tag} has {size} bytes, its field takes {stop - position}")
        position = end
    return position


def _field_reader(field: _Field, flexible: bool, relatives: Sequence[type]) -> Reader:
    if field.entity is not None:
        reader = _entity_reader(field.entity, relatives)
        if field.is_nullable and not field.is_array:
            return _nullable_entity_reader(reader)
    else:
        assert field.kafka_type is not None
        is_nullable = field.is_nullable and not field.is_array
        reader = _primitive_reader(field.kafka_type, flexible, is_nullable, field.name)
    return _array_reader(reader, flexible, field) if field.is_array else reader


def _nullable_entity_reader(reader: Reader) -> Reader:
    def read_nullable(data: Buffer, position: int) -> tuple[Any, int]:
        marker = data[position]
        if marker == 0xFF:  # KIP-893: -1 is null, 1 is present.
            return None, position + 1
        return reader(data, position + 1)

    return read_nullable


def _array_reader(reader: Reader, flexible: bool, field: _Field) -> Reader:
    def read_array(data: Buffer, position: int) -> tuple[Any, int]:
        if flexible:
            count, position = read_uvarint(data, position)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(data, position)
            position += 4
        if count == -1 and field.is_nullable:
            return None, position
        # Every element takes at least a byte, so a larger count is a lie.
        if count < 0 or count > len(data) - position:
            raise BadPeer(f"{field.name} claims {count} elements, {len(data) - position} bytes are left")
        items = []
        for _ in range(count):
            item, position = reader(data, position)
            items.append(item)
        return items, position

    return read_array


def _fixed_reader(layout: struct.Struct) -> Reader:
    unpack, size = layout.unpack_from, layout.size

    def read_fixed(data: Buffer, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    return read_fixed


def _read_bool(data: Buffer, position: int) -> tuple[bool, int]:
    return data[position] != 0, position + 1


def read_uuid(data: Buffer, position: int) -> tuple[UUID, int]:
    raw = bytes(data[position : position + 16])
    if len(raw) < 16:
        raise BadPeer("uuid cut short")
    return UUID(bytes=raw), position + 16


def _bytes_reader(flexible: bool, is_nullable: bool, is_text: bool, name: str) -> Reader:
    length_layout = _INT16 if is_text else _INT32

    def read_bytes(data: Buffer, position: int) -> tuple[Any, int]:
        if flexible:
            length, position = read_uvarint(data, position)
            length -= 1
        else:
            (length,) = length_layout.unpack_from(data, position)
            position += length_layout.size
        if length == -1 and is_nullable:
            return None, position
        end = position + length
        if length < 0 or end > len(data):
            raise BadPeer(f"{name} has length {length}, {len(data) - position} bytes are left")
        raw = bytes(data[position:end])
        return raw.decode() if is_text else raw, end

    return read_bytes


def _primitive_reader(kafka_type: str, flexible: bool, is_nullable: bool, name: str) -> Reader:
    if kafka_type in _LAYOUTS:
        return _fixed_reader(_LAYOUTS[kafka_type])
    if kafka_type == "bool":
        return _read_bool
    if kafka_type == "uuid":
        return read_uuid
    # kio calls `records` nullable where Kafka does.
    return _bytes_reader(flexible, is_nullable, kafka_type == "string", name)


# Writing --------------------------------------------------------------------------------------------------------------

_REQUIRED = object()


def _entity_writer(entity: Any) -> Writer:
    flexible: bool = entity.__flexible__
    fields = _fields(entity)
    plain = [
        (field.name, field.default if field.is_optional else _REQUIRED, _field_writer(field, flexible))
        for field in fields
        if field.tag is None
    ]
    tagged = [
        (field.tag, field.name, field.default, _field_writer(field, flexible))
        for field in sorted(fields, key=lambda field: field.tag or 0)
        if field.tag is not None
    ]

    def write_entity(out: bytearray, value: Struct) -> None:
        values = value.__dict__
        for name, default, writer in plain:
            item = values.get(name, default)
            if item is _REQUIRED:
                raise KeyError(f"{entity.__qualname__} v{entity.__version__} needs {name}")
            writer(out, item)
        if flexible:
            present = [
                (tag, writer, values[name])
                for tag, name, default, writer in tagged
                if name in values and values[name] != default
            ]
            write_uvarint(out, len(present))
            for tag, writer, item in present:
                body = bytearray()
                writer(body, item)
                write_uvarint(out, tag)
                write_uvarint(out, len(body))
                out += body

    return write_entity


def _field_writer(field: _Field, flexible: bool) -> Writer:
    if field.entity is not None:
        writer = _entity_writer(field.entity)
        if field.is_nullable and not field.is_array:
            writer = _nullable_entity_writer(writer)
    else:
        assert field.kafka_type is not None
        writer = _primitive_writer(field.kafka_type, flexible)
    return _array_writer(writer, flexible) if field.is_array else writer


def _nullable_entity_writer(writer: Writer) -> Writer:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            writer(out, value)

    return write_nullable


def _array_writer(writer: Writer, flexible: bool) -> Writer:
    def write_array(out: bytearray, items: Sequence[Any] | None) -> None:
        count = -1 if items is None else len(items)
        if flexible:
            write_uvarint(out, count + 1)
        else:
            out += _INT32.pack(count)
        for item in items or ():
            writer(out, item)

    return write_array


def _fixed_writer(layout: struct.Struct) -> Writer:
    pack = layout.pack

    def write_fixed(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write_fixed


def _write_bool(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def _bytes_writer(flexible: bool, is_text: bool) -> Writer:
    length_layout = _INT16 if is_text else _INT32

    def write_bytes(out: bytearray, value: Any) -> None:
        raw = value.encode() if isinstance(value, str) else value
        length = -1 if raw is None else len(raw)
        if flexible:
            write_uvarint(out, length + 1)
        else:
            out += length_layout.pack(length)
        if raw:
            out += raw

    return write_bytes


def _primitive_writer(kafka_type: str, flexible: bool) -> Writer:
    if kafka_type in _LAYOUTS:
        return _fixed_writer(_LAYOUTS[kafka_type])
    if kafka_type == "bool":
        return _write_bool
    if kafka_type == "uuid":
        return _write_uuid
    return _bytes_writer(flexible, kafka_type == "string")


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_LAYOUTS = {
    "int8": struct.Struct(">b"),
    "int16": _INT16,
    "uint16": struct.Struct(">H"),
    "int32": _INT32,
    "int64": _INT64,
    "float64": struct.Struct(">d"),
    "error_code": _INT16,
    "timedelta_i32": _INT32,
    "timedelta_i64": _INT64,
    "datetime_i64": _INT64,
}
