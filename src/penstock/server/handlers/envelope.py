"""Envelope: a client's request for the controller, passed on by the broker that it came to (KIP-590).

From brokers only, and only for what any broker would pass on. The answer is the whole response with its header. The
principal is not looked at: there are no users yet.
"""

import ipaddress
import struct
from collections.abc import Awaitable
from typing import NamedTuple

from penstock.base.errors import BadPeer, ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.server.api import APIS, ApiKey, Handler, RequestHeader, awaited, handler
from penstock.server.authentication import require_broker
from penstock.server.context import Context
from penstock.wire.codec import (
    Struct,
    decode_request,
    encode_response,
    is_flexible_request,
    is_flexible_response,
)
from penstock.wire.request_header import read_header_rest, read_header_start

log = get_logger(__name__)

_CORRELATION_ID = struct.Struct(">i")


class _Enclosed(NamedTuple):
    handler: Handler
    header: RequestHeader
    correlation_id: int
    request: Struct


@handler(ApiKey.ENVELOPE, versions=range(1), is_advertised=False)
def envelope(context: Context, header: RequestHeader, request: Struct) -> Struct | Awaitable[Struct]:
    image = context.metadata.image
    try:
        require_broker(header.authentication, image)
        if image.controller_id != context.config.node_id:
            raise Refused(ErrorCode.not_controller)
        enclosed = _open(request)
    except Refused as refused:
        return Struct(response_data=None, error_code=refused.code)
    return _answer(context, enclosed)


def _open(envelope: Struct) -> _Enclosed:
    frame = memoryview(envelope.request_data)
    try:
        start = read_header_start(frame)
        key, version = start.api_key, start.version
        api = APIS.get(key)
        if api is None or version not in api.versions:
            raise Refused(ErrorCode.unsupported_version)
        if not api.is_at_controller or api.handler is None:
            raise Refused(ErrorCode.invalid_request, "not a request that is passed on")
        client_id, position = read_header_rest(frame, start, is_flexible_request(key, version))
        request = decode_request(key, version, frame, position)
    except BadPeer as error:
        raise Refused(ErrorCode.invalid_request, str(error)) from error
    header = RequestHeader(key, version, client_id, _host(envelope.client_host_address))
    return _Enclosed(api.handler, header, start.correlation_id, request)


def _host(address: bytes) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""


async def _answer(context: Context, enclosed: _Enclosed) -> Struct:
    header = enclosed.header
    try:
        response = await awaited(enclosed.handler(context, header, enclosed.request))
    except Exception:
        # As in the dispatcher, but without an end to the connection: other clients' requests come over it, too.
        log.exception("forwarded request failed", api=header.api_key, version=header.version, client=header.client_id)
        return Struct(response_data=None, error_code=ErrorCode.unknown_server_error)
    data = bytearray(_CORRELATION_ID.pack(enclosed.correlation_id))
    if is_flexible_response(header.api_key, header.version):
        data.append(0)
    data += encode_response(header.api_key, header.version, response)
    return Struct(response_data=data, error_code=ErrorCode.none)
