"""From a frame to a handler and back: the only place, besides task roots, that catches everything."""

import asyncio
import struct
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.errors import BadPeer
from penstock.base.logging import get_logger
from penstock.partition.peers import PeerLost
from penstock.server.api import APIS, Api, ApiKey, Handler, RequestHeader, awaited
from penstock.server.context import Context
from penstock.server.handlers.api_versions import unsupported_version
from penstock.wire.codec import (
    Struct,
    decode_request,
    encode_response,
    is_flexible_request,
    is_flexible_response,
)
from penstock.wire.request_header import read_header_rest, read_header_start

if TYPE_CHECKING:
    from penstock.server.connection import Connection, Reply

log = get_logger(__name__)

# Between brokers, which are not throttled. A client's has no place to be told of it.
WITHOUT_THROTTLE = frozenset({ApiKey.ENVELOPE, ApiKey.WRITE_TXN_MARKERS})

_KIND = struct.Struct(">I")  # api_key and api_version
_START = struct.Struct(">Ii")  # Those two, correlation_id

KNOWN_BYTES_MAX = 256  # Of a header that is remembered: most have ten to fifty, and there may be 40,000 connections.


class _Route(NamedTuple):
    """What there is to know of one version of one API before its request is read."""

    api: Api
    is_request_flexible: bool
    is_response_flexible: bool


class KnownHeader(NamedTuple):
    """A request header as it came. A client's next one mostly differs in its correlation id alone."""

    kind: int  # Key and version.
    rest: bytes  # What follows the correlation id: the client's name, tags.
    end: int  # Where the request itself begins.
    route: _Route
    header: RequestHeader


class Dispatcher:
    def __init__(self, context: Context, apis: Mapping[int, Api] = APIS) -> None:
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes = {
            (key, version): _Route(api, is_flexible_request(key, version), is_flexible_response(key, version))
            for key, api in apis.items()
            for version in api.versions
        }

    def dispatch(self, connection: "Connection", frame: memoryview) -> None:
        """Start work on one request. BadPeer when it cannot be answered at all."""
        try:
            kind, correlation_id = _START.unpack_from(frame)
        except struct.error as error:
            raise BadPeer(f"frame of {len(frame)} bytes has no request header") from error
        known = connection.known_header
        if known is None or known.kind != kind or bytes(frame[_START.size : known.end]) != known.rest:
            known = self._read_header(connection, frame)
            if known is None:
                # KIP-511: the one request whose version a client cannot know beforehand.
                reply = connection.open_reply(correlation_id, False, len(frame))
                reply.send([encode_response(ApiKey.API_VERSIONS, 0, unsupported_version())])
                return
            connection.known_header = known if len(known.rest) <= KNOWN_BYTES_MAX else None
        api, header = known.route.api, known.header
        reply = connection.open_reply(correlation_id, known.route.is_response_flexible, len(frame))
        quotas = self._context.quotas.active
        began_s = 0.0
        if quotas is not None:
            if header.broker is None:
                throttle_ms = quotas.request_throttle_ms(header.client_id)
                header, began_s = replace(header, throttle_ms=throttle_ms), quotas.now()
                reply.throttle(throttle_ms)
            else:
                quotas = None  # What is set for clients, whatever they are called, is not meant for brokers.
        try:
            if api.raw_handler is not None:
                api.raw_handler(self._context, header, frame, known.end, reply)
            else:
                self._handle(api, header, frame, known.end, reply)
        except BadPeer:
            raise
        except Exception:
            log.exception(
                "request failed",
                api=api.key.name,
                version=header.version,
                client=header.client_id,
                peer=connection.peer,
            )
            reply.fail("internal error")
        if quotas is not None:
            quotas.on_request_time(header.client_id, quotas.now() - began_s)

    def _read_header(self, connection: "Connection", frame: memoryview) -> KnownHeader | None:
        """None for a version of ApiVersions that is not served; BadPeer when it is malformed or not served at all."""
        start = read_header_start(frame)
        key, version = start.api_key, start.version
        route = self._routes.get((key, version))
        if route is None:
            if key != ApiKey.API_VERSIONS:
                raise BadPeer(f"api key {key} v{version} is not served")
            return None
        client_id, position = read_header_rest(frame, start, route.is_request_flexible)
        header = RequestHeader(key, version, client_id, connection.ip, authentication=connection.authentication)
        (kind,) = _KIND.unpack_from(frame)
        return KnownHeader(kind, bytes(frame[_START.size : position]), position, route, header)

    def _handle(self, api: Api, header: RequestHeader, frame: memoryview, position: int, reply: "Reply") -> None:
        request = decode_request(header.api_key, header.version, frame, position)
        assert api.handler is not None
        answer: Struct | Awaitable[Struct]
        if api.is_at_controller and header.broker is None and self._context.forwarder.is_needed:
            answer = self._forward(api.handler, header, request, frame)
        else:
            answer = api.handler(self._context, header, request)
        if isinstance(answer, Struct):
            _note_throttle(header, answer)
            reply.send([encode_response(header.api_key, header.version, answer)])
        else:
            task = asyncio.get_running_loop().create_task(self._answer_later(api, header, answer, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: _close(answer))

    async def _forward(self, handle: Handler, header: RequestHeader, request: Struct, frame: memoryview) -> Struct:
        """The controller's answer, or ours when there is none: that this broker is not the controller."""
        try:
            return await self._context.forwarder.ask(header, frame)
        except PeerLost as error:
            log.debug("request could not be forwarded", api=ApiKey(header.api_key).name, reason=error)
        return await awaited(handle(self._context, header, request))

    async def _answer_later(self, api: Api, header: RequestHeader, answer: Awaitable[Struct], reply: "Reply") -> None:
        try:
            quotas = self._context.quotas.active
            if quotas is not None and header.broker is None:
                answer = quotas.timed(header.client_id, answer)
            response = await answer
            _note_throttle(header, response)
            if reply.is_wanted:
                reply.send([encode_response(header.api_key, header.version, response)])
        except Exception:
            log.exception("request failed", api=api.key.name, version=header.version, client=header.client_id)
            reply.fail("internal error")

    async def stop(self) -> None:
        """Let requests that are being worked on finish, for a moment."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        for task in list(self._tasks):
            task.cancel()


def _close(answer: Awaitable[Struct]) -> None:
    """Where the task was cancelled before its first step, nobody has awaited it, and Python warns of that."""
    if isinstance(answer, Coroutine):
        answer.close()


def _note_throttle(header: RequestHeader, response: Struct) -> None:
    if header.throttle_ms and header.api_key not in WITHOUT_THROTTLE:
        response.throttle_time_ms = header.throttle_ms
