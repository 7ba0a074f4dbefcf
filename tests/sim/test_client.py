import asyncio
import struct
from random import Random

import pytest

from penstock.base.types import TopicPartition
from penstock.sim import client as client_module
from penstock.sim.client import BrokenReply, LinkLost, NoReply, SimClient, batch_of
from penstock.sim.clock import SimLoop
from penstock.sim.network import SimNetwork
from penstock.wire.batch import stamp

PARTITION = TopicPartition("t", 0)


class Stub(asyncio.Protocol):
    """Answers each request with what `answer(correlation_id)` gives."""

    def __init__(self, answer) -> None:
        self.answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4 and len(self.received) >= 4 + int.from_bytes(self.received[:4]):
            size = int.from_bytes(self.received[:4])
            frame, self.received = self.received[4 : 4 + size], self.received[4 + size :]
            _, _, correlation_id = struct.unpack_from(">hhi", frame)
            body = self.answer(correlation_id)
            if body is not None:
                self.transport.write(len(body).to_bytes(4) + body)


def with_stub(answer, test) -> SimLoop:
    loop = SimLoop()
    network = SimNetwork(loop=loop, random=Random(0))

    async def main() -> None:
        listener = await network.listen(lambda: Stub(answer), "localhost", 0)
        await test(network, await SimClient.connect(network, listener.port))

    loop.run(main())
    return loop


def produced(correlation_id: int, base_offset: int) -> bytes:
    """A Produce v9 reply for one partition, written by hand."""
    header = struct.pack(">ib", correlation_id, 0)
    partition = struct.pack(">ihqqqbbb", 0, 0, base_offset, -1, 0, 1, 0, 0)
    return header + b"\x02\x02t\x02" + partition + b"\x00" + struct.pack(">ib", 0, 0)


def test_pipelined_requests_get_their_own_answers():
    async def test(network, client):
        replies = await asyncio.gather(*(client.produce(PARTITION, batch_of([b"v"], 0)) for _ in range(3)))
        assert [reply.base_offset for reply in replies] == [10, 20, 30]
        assert all(reply.error == 0 for reply in replies)

    assert not with_stub(lambda number: produced(number, number * 10), test).failures


def test_answers_out_of_order_are_reported():
    async def test(network, client):
        with pytest.raises(NoReply):
            await client.produce(PARTITION, batch_of([b"v"], 0))

    loop = with_stub(lambda number: produced(number + 1, 0), test)
    assert isinstance(loop.failures[0]["exception"], BrokenReply)


def test_bytes_that_are_left_over_are_reported():
    async def test(network, client):
        with pytest.raises(NoReply):
            await client.produce(PARTITION, batch_of([b"v"], 0))

    loop = with_stub(lambda number: produced(number, 0) + b"!", test)
    assert isinstance(loop.failures[0]["exception"], BrokenReply)


def test_a_lost_link_is_not_an_answer():
    async def test(network, client):
        asyncio.get_running_loop().call_later(1, network.cut_one)
        with pytest.raises(LinkLost):
            await client.produce(PARTITION, batch_of([b"v"], 0))
        with pytest.raises(LinkLost):
            await client.produce(PARTITION, batch_of([b"v"], 0))

    with_stub(lambda number: None, test)


def test_fetched_bytes_become_records_from_the_offset_asked_for():
    first, second = batch_of([b"a", b"b"], 0), batch_of([b"c"], 0)
    stamp(first, 0, 5, 0)
    stamp(second, 0, 7, 0)
    data = bytes(first + second)
    assert client_module._records(data, 6) == ([(6, b"b"), (7, b"c")], 8)
    assert client_module._records(data[:-1], 5) == ([(5, b"a"), (6, b"b")], 7), "a batch cut short is left for later"
    assert client_module._records(b"", 5) == ([], 5)
    with pytest.raises(BrokenReply):
        client_module._records(data[:-1] + b"x", 5)
