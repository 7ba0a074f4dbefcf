"""From a frame to its handler: what is remembered of one request must not be taken for another's."""

import asyncio
import inspect
import struct
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.api import Api, ApiKey, RequestHeader
from penstock.server.authentication import Authentication
from penstock.server.dispatch import Dispatcher

VERSIONS = range(2, 4)  # Of ApiVersions: the first has a plain header, the second one that ends in tags.

requests = st.tuples(
    st.sampled_from(VERSIONS),
    st.none() | st.sampled_from(["", "a", "ab", "b" * 300]),
    st.sampled_from([b"", b"a", b"\0", b"ab", b"\xff\xff"]),
)


def context_without_quotas() -> Any:
    return SimpleNamespace(quotas=SimpleNamespace(active=None), forwarder=SimpleNamespace(is_needed=False))


def frame_of(version: int, client_id: str | None, body: bytes, correlation_id: int) -> memoryview:
    name = b"" if client_id is None else client_id.encode()
    head = struct.pack(
        ">hhih", ApiKey.API_VERSIONS, version, correlation_id, -1 if client_id is None else len(client_id)
    )
    return memoryview(bytearray(head + name + (b"\0" if version == 3 else b"") + body))


@given(st.lists(requests, max_size=8))
def test_each_request_has_its_own_header(sent: list[tuple[int, str | None, bytes]]) -> None:
    found: list[tuple[int, str | None, bytes]] = []

    def handle(context: object, header: RequestHeader, frame: memoryview, position: int, reply: object) -> None:
        assert header.client_host == "10.0.0.1"
        found.append((header.version, header.client_id, bytes(frame[position:])))

    opened: list[int] = []
    connection: Any = SimpleNamespace(
        known_header=None,
        ip="10.0.0.1",
        authentication=Authentication(),
        open_reply=lambda correlation_id, *_: opened.append(correlation_id),
    )
    dispatcher = Dispatcher(context_without_quotas(), {18: Api(ApiKey.API_VERSIONS, VERSIONS, 2, None, handle)})
    for number, (version, client_id, body) in enumerate(sent):
        dispatcher.dispatch(connection, frame_of(version, client_id, body, number))
    assert found == sent
    assert opened == list(range(len(sent)))


def test_an_answer_that_the_stop_overtakes_is_closed() -> None:
    answers = []

    async def answer() -> Any:
        raise AssertionError("has begun")

    def handle(context: object, header: RequestHeader, request: object) -> Any:
        answers.append(answer())
        return answers[-1]

    connection: Any = SimpleNamespace(
        known_header=None, ip="10.0.0.1", authentication=Authentication(), open_reply=lambda *_: None
    )
    dispatcher = Dispatcher(context_without_quotas(), {18: Api(ApiKey.API_VERSIONS, VERSIONS, 2, handle, None)})

    async def request_and_stop() -> None:
        dispatcher.dispatch(connection, frame_of(2, "a", b"", 0))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(request_and_stop())
    assert inspect.getcoroutinestate(answers[0]) == inspect.CORO_CLOSED
