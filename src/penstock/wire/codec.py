"""Kafka messages to and from bytes, for every version, from the table that scripts/generate_schemas.py makes of kio.

Every version of a message has one shape, a `Struct` with Kafka's field names in snake case: a field that the version
read does not have gets its schema default, and a field that the version written does not have is left out. Durations
and times are integers that end in `_ms`.

Reading survives hostile input: a count is checked against the bytes that are left before anything is made. (kio's own
decoder reserves memory for as many elements as an array claims, and a claim of five bytes ends the process:
docs/adr/0001.)
"""

import struct
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from penstock.base.errors import BadPeer
from penstock.wire.fields import ELEMENTS_MAX, Allowance, Buffer, Reader, read_tags, read_uuid
from penstock.wire.schema_table import MESSAGES
from penstock.wire.varint import InvalidVarint, read_uvarint, write_uvarint

Writer = Callable[[bytearray, Any], None]

ZERO_UUID = UUID(int=0)

API_VERSIONS_KEY = 18


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
    """The request body at `position`; BadPeer when it is cut short or malformed.

    Bytes behind it are passed over, as Kafka does: librdkafka sends three too many with an empty Metadata v13.
    """
    reader = request_reader(api_key, version)
    try:
        request, _ = reader(data, position)
    except (struct.error, IndexError, InvalidVarint, UnicodeDecodeError) as error:
        raise BadPeer(f"request of api {api_key} v{version} cannot be read: {error}") from error
    assert isinstance(request, Struct)
    return request


def encode_response(api_key: int, version: int, response: Struct) -> bytearray:
    out = bytearray()
    response_writer(api_key, version)(out, response)
    return out


@cache
def is_flexible_request(api_key: int, version: int) -> bool:
    """Whether the request header is v2: it ends in tagged fields."""
    return version >= int(MESSAGES[api_key][0])


@cache
def is_flexible_response(api_key: int, version: int) -> bool:
    """Whether the response header is v1. Never for ApiVersions: its client does not know our versions yet."""
    return version >= int(MESSAGES[api_key][1]) and api_key != API_VERSIONS_KEY


@cache
def request_reader(api_key: int, version: int) -> Reader:
    flexible_from, _, fields, _ = MESSAGES[api_key]
    allowance = Allowance()  # One is enough: requests are read one at a time, from start to end.
    reader = _struct_reader(_fields(fields), version, version >= flexible_from, allowance)

    def read_request(data: Buffer, position: int) -> tuple[Any, int]:
        allowance.left = ELEMENTS_MAX
        return reader(data, position)

    return read_request


@cache
def response_writer(api_key: int, version: int) -> Writer:
    _, flexible_from, _, fields = MESSAGES[api_key]
    return _struct_writer(_fields(fields), version, version >= flexible_from)


@cache
def response_reader(api_key: int, version: int) -> Reader:
    """For those who play the client: tests, simulation, and later the followers."""
    _, flexible_from, _, fields = MESSAGES[api_key]
    return _struct_reader(_fields(fields), version, version >= flexible_from)


@cache
def request_writer(api_key: int, version: int) -> Writer:
    flexible_from, _, fields, _ = MESSAGES[api_key]
    return _struct_writer(_fields(fields), version, version >= flexible_from)


# Fields of a message --------------------------------------------------------------------------------------------------


class _Field(NamedTuple):
    name: str
    type: str
    is_array: bool
    versions: range
    nullable_versions: range
    tag: int
    tagged_versions: range
    default: Any
    is_required: bool  # The writer must give it.
    fields: "tuple[_Field, ...]"


def _fields(entries: Sequence[tuple[Any, ...]] | None) -> tuple[_Field, ...]:
    return tuple(_field(*entry) for entry in entries or ())


def _field(
    name: str,
    kind: str,
    versions: tuple[int, int],
    nullable: tuple[int, int] | None,
    tagged: tuple[int, tuple[int, int]] | None,
    default: Any,
    entries: Sequence[tuple[Any, ...]] | None,
) -> _Field:
    fields = _fields(entries)
    is_required = default == "required" and name != "throttle_time_ms"  # Handlers do not throttle.
    if default is None or default == "required":
        default = _zero(kind, nullable is not None, fields)
    tag, tagged_versions = tagged or (-1, None)
    return _Field(
        name,
        kind.removeprefix("[]"),
        kind.startswith("[]"),
        _range(versions),
        _range(nullable),
        tag,
        _range(tagged_versions),
        default,
        is_required,
        fields,
    )


def _range(versions: tuple[int, int] | None) -> range:
    return range(0) if versions is None else range(versions[0], versions[1] + 1)


def _zero(kind: str, is_nullable: bool, fields: tuple[_Field, ...]) -> Any:
    if kind.startswith("[]"):
        return ()
    if is_nullable:
        return None
    if kind == "struct":
        return Struct(**{field.name: field.default for field in fields})
    zeros: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": ZERO_UUID}
    return zeros.get(kind, 0)


# Reading --------------------------------------------------------------------------------------------------------------


def _struct_reader(
    fields: tuple[_Field, ...], version: int, flexible: bool, allowance: Allowance | None = None
) -> Reader:
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    for field in fields:
        if version in field.tagged_versions:
            tagged[field.tag] = (field.name, _field_reader(field, version, flexible, allowance))
            defaults[field.name] = field.default
        elif version in field.versions:
            plain.append((field.name, _field_reader(field, version, flexible, allowance)))
        else:
            defaults[field.name] = field.default

    def read_struct(data: Buffer, position: int) -> tuple[Struct, int]:
        result = Struct()
        values = result.__dict__
        values.update(defaults)
        for name, reader in plain:
            values[name], position = reader(data, position)
        if flexible:
            position = read_tags(data, position, tagged, values, allowance)
        return result, position

    return read_struct


def _field_reader(field: _Field, version: int, flexible: bool, allowance: Allowance | None) -> Reader:
    is_nullable = version in field.nullable_versions
    if field.type == "struct":
        reader = _struct_reader(field.fields, version, flexible, allowance)
        if is_nullable and not field.is_array:
            return _nullable_struct_reader(reader, field.name)
    else:
        reader = _value_reader(field.type, flexible, is_nullable and not field.is_array, field.name)
    return _array_reader(reader, flexible, is_nullable, field.name, allowance) if field.is_array else reader


def _nullable_struct_reader(reader: Reader, name: str) -> Reader:
    def read_nullable(data: Buffer, position: int) -> tuple[Any, int]:
        marker = data[position]
        if marker == 0xFF:  # KIP-893: -1 is null, 1 is present.
            return None, position + 1
        if marker != 1:
            raise BadPeer(f"{name} is marked {marker}, neither null nor present")
        return reader(data, position + 1)

    return read_nullable


def _array_reader(reader: Reader, flexible: bool, is_nullable: bool, name: str, allowance: Allowance | None) -> Reader:
    def read_array(data: Buffer, position: int) -> tuple[Any, int]:
        if flexible:
            count, position = read_uvarint(data, position)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(data, position)
            position += 4
        if count == -1 and is_nullable:
            return None, position
        # Every element takes at least a byte, so a larger count is a lie.
        if count < 0 or count > len(data) - position:
            raise BadPeer(f"{name} claims {count} elements, {len(data) - position} bytes are left")
        if allowance is not None:
            allowance.take(count)
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


def _value_reader(kind: str, flexible: bool, is_nullable: bool, name: str) -> Reader:
    if kind in _LAYOUTS:
        return _fixed_reader(_LAYOUTS[kind])
    if kind == "bool":
        return _read_bool
    if kind == "uuid":
        return read_uuid
    return _bytes_reader(flexible, is_nullable, kind == "string", name)


# Writing --------------------------------------------------------------------------------------------------------------

_REQUIRED = object()


def _struct_writer(fields: tuple[_Field, ...], version: int, flexible: bool) -> Writer:
    plain = []
    tagged = []
    for field in fields:
        if version in field.tagged_versions:
            tagged.append((field.tag, field.name, field.default, _field_writer(field, version, flexible)))
        elif version in field.versions:
            default = _REQUIRED if field.is_required else field.default
            plain.append((field.name, default, _field_writer(field, version, flexible)))
    tagged.sort(key=lambda entry: entry[0])
    known = {field.name for field in fields}

    def write_struct(out: bytearray, value: Struct) -> None:
        values = value.__dict__
        assert values.keys() <= known, f"no version has {values.keys() - known}"
        for name, default, writer in plain:
            item = values.get(name, default)
            if item is _REQUIRED:
                raise KeyError(f"v{version} needs {name}")
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

    return write_struct


def _field_writer(field: _Field, version: int, flexible: bool) -> Writer:
    if field.type == "struct":
        writer = _struct_writer(field.fields, version, flexible)
        if version in field.nullable_versions and not field.is_array:
            writer = _nullable_struct_writer(writer)
    else:
        writer = _value_writer(field.type, flexible)
    return _array_writer(writer, flexible) if field.is_array else writer


def _nullable_struct_writer(writer: Writer) -> Writer:
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


def _value_writer(kind: str, flexible: bool) -> Writer:
    if kind in _LAYOUTS:
        return _fixed_writer(_LAYOUTS[kind])
    if kind == "bool":
        return _write_bool
    if kind == "uuid":
        return _write_uuid
    return _bytes_writer(flexible, kind == "string")


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LAYOUTS = {
    "int8": struct.Struct(">b"),
    "int16": _INT16,
    "uint16": struct.Struct(">H"),
    "int32": _INT32,
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
