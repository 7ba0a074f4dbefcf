"""A blocking client for what Spark needs of a cluster: partitions and their leaders, offsets, and bytes of a partition.

One thread, one request at a time, except that `Connection.send` and `receive` may be apart: a reader asks for the next
bytes before it looks at the last. Whatever is asked here can be asked again, so a connection that breaks and a leader
that moved cost another round until `patience_s` is over.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import NamedTuple, TypeVar

from penstock.base.errors import BadPeer, ErrorCode
from penstock.spark.plan import TopicPartition
from penstock.wire.codec import Struct, is_flexible_request, is_flexible_response, request_writer, response_reader
from penstock.wire.fields import read_tags
from penstock.wire.varint import InvalidVarint

T = TypeVar("T")
Address = tuple[str, int]

METADATA, METADATA_VERSION = 3, 8
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 4

CONNECT_S_MAX = 10.0
REPLY_S_MAX = 40.0  # A broker holds no request of ours longer than half a minute.
PATIENCE_S = 60.0  # A broker that was killed has a successor when its session ends, after 20 s by default.
PAUSE_S = 0.2
FRAME_BYTES_MAX = 256 << 20
RECEIVE_BUFFER_BYTES = 4 << 20  # Bytes that arrive while Python decodes the ones before.
PADDING_BYTES = 16  # After each frame, for who reads eight bytes at a time (decode.py).

_HEADER = struct.Struct(">hhih")
_CLIENT_ID = b"penstock-spark"
_BROKEN = (OSError, BadPeer, struct.error, IndexError, InvalidVarint, UnicodeDecodeError)

RETRIABLE = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.replica_not_available,
        ErrorCode.network_exception,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
    }
)


class Refusal(Exception):
    """The brokers' answer, when asking again would not change it, or did not."""

    def __init__(self, code: int, what: str) -> None:
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)
        super().__init__(f"{what}: {name}")
        self.code = code


class Unreachable(Exception):
    """Nobody answered in time."""


class TryAgain(Exception):
    """The leader, or the coordinator, is another by now, or not ready."""


class Frame(NamedTuple):
    """A reply: what lies in [start, end) of `data`. PADDING_BYTES more follow."""

    data: bytearray
    start: int
    end: int


class Connection:
    def __init__(self, address: Address) -> None:
        connected = socket.create_connection(address, timeout=CONNECT_S_MAX)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        connected.settimeout(REPLY_S_MAX)
        self._socket = connected
        self._ids = count(1)

    def close(self) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, request: Struct) -> Struct:
        body = bytearray()
        request_writer(api_key, version)(body, request)
        number = self.send(api_key, version, body)
        frame = self.receive(api_key, version, number)
        reply, _ = response_reader(api_key, version)(memoryview(frame.data)[: frame.end], frame.start)
        assert isinstance(reply, Struct)
        return reply

    def send(self, api_key: int, version: int, body: bytes | bytearray, *more: bytes | bytearray | memoryview) -> int:
        """The number by which `receive` knows the reply. `more` goes out after `body`, uncopied."""
        number = next(self._ids)
        head = _HEADER.pack(api_key, version, number, len(_CLIENT_ID)) + _CLIENT_ID
        if is_flexible_request(api_key, version):
            head += b"\0"
        size = len(head) + len(body) + sum(map(len, more))
        self._socket.sendall(struct.pack(">i", size) + head + body)
        for part in more:
            self._socket.sendall(part)
        return number

    def receive(self, api_key: int, version: int, number: int, buffer: bytearray | None = None) -> Frame:
        """The reply to request `number`: in `buffer`, where it fits, which then must not be in use any more."""
        head = bytearray(4)
        self._fill(memoryview(head))
        (size,) = struct.unpack(">i", head)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise BadPeer(f"a reply of {size} bytes")
        data = buffer if buffer and len(buffer) >= size + PADDING_BYTES else bytearray(size + PADDING_BYTES)
        self._fill(memoryview(data)[:size])
        if struct.unpack_from(">i", data)[0] != number:
            raise BadPeer("the reply to another request")
        return Frame(data, read_tags(data, 4, {}, {}) if is_flexible_response(api_key, version) else 4, size)

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            received = self._socket.recv_into(view[done:])
            if not received:
                raise BadPeer("the broker closed the connection")
            done += received


class Brokers:
    """A cluster, by its bootstrap servers. Use it as a context manager, or close it."""

    def __init__(self, bootstrap_servers: str, *, patience_s: float = PATIENCE_S) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._bootstrap = [_address(each) for each in bootstrap_servers.split(",") if each.strip()]
        self._patience_s = patience_s
        self._connections: dict[Address, Connection] = {}
        self._addresses: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def persist(self, step: Callable[[], T], what: str) -> T:
        """What `step` gives, which may break off, or raise TryAgain, until patience is at its end."""
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                return step()
            except (*_BROKEN, TryAgain) as error:
                self.close()
                self._leaders.clear()
                if time.monotonic() > give_up_at:
                    raise Unreachable(f"{what} at {self._bootstrap_servers}: {error}") from error
            time.sleep(PAUSE_S)

    # What there is ----------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics but the internal ones."""
        reply = self.persist(lambda: self._metadata(None), "list topics")
        return sorted(topic.name for topic in reply.topics if not topic.is_internal and not topic.error_code)

    def partitions(self, topics: Iterable[str], *, may_create: bool = False) -> list[TopicPartition]:
        """Refusal when there is no such topic, after a second look: a new one may not have got around yet.

        With `may_create` the brokers make it, if they do so for any producer.
        """
        names = sorted(set(topics))
        give_up_at = time.monotonic() + min(self._patience_s, 5.0)
        while True:
            reply = self.persist(lambda: self._metadata(names, may_create), "look up topics")
            failed = [topic for topic in reply.topics if topic.error_code]
            if not failed:
                return sorted((topic.name, part.partition_index) for topic in reply.topics for part in topic.partitions)
            if time.monotonic() > give_up_at or failed[0].error_code not in RETRIABLE:
                raise Refusal(failed[0].error_code, f"topic {failed[0].name}")
            time.sleep(PAUSE_S)

    def offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> dict[TopicPartition, int]:
        """For each partition the offset at a timestamp, EARLIEST or LATEST; -1: it has nothing as late as that."""
        found: dict[TopicPartition, int] = {}

        def step() -> dict[TopicPartition, int]:
            self._learn_leaders({topic for topic, _ in wanted})
            missing = [key for key in wanted if key not in found]
            for leader in sorted({self._leaders[key] for key in missing}):
                mine = {key: wanted[key] for key in missing if self._leaders[key] == leader}
                found.update(self._list_offsets(self._to(leader), mine, isolation))
            if len(found) < len(wanted):
                raise TryAgain("a leader moved")
            return found

        return self.persist(step, "look up offsets") if wanted else {}

    def leader(self, topic: str, partition: int) -> Connection:
        """The connection to the partition's leader; inside `persist` only."""
        return self._to(self.leader_id(topic, partition))

    def leader_id(self, topic: str, partition: int) -> int:
        """As `leader`."""
        if (topic, partition) not in self._leaders:
            self._learn_leaders({topic})
        if (topic, partition) not in self._leaders:
            raise TryAgain(f"{topic}-{partition} has no leader")
        return self._leaders[topic, partition]

    def any(self) -> Connection:
        """A connection to somebody who answers; inside `persist` only."""
        errors: list[Exception] = []
        for address in [*self._connections, *self._addresses.values(), *self._bootstrap]:
            try:
                return self._connected(address)
            except OSError as error:
                errors.append(error)
        raise errors[0]

    def at(self, address: Address) -> Connection:
        return self._connected(address)

    def addresses(self) -> list[Address]:
        """Of all brokers; inside `persist` only."""
        self._metadata([])
        return sorted(self._addresses.values())

    def _learn_leaders(self, topics: set[str]) -> None:
        reply = self._metadata(sorted(topics))
        for topic in reply.topics:
            if topic.error_code in RETRIABLE:
                raise TryAgain(f"topic {topic.name}: {ErrorCode(topic.error_code).name}")
            if topic.error_code:
                raise Refusal(topic.error_code, f"topic {topic.name}")
            for part in topic.partitions:
                if part.leader_id < 0:
                    raise TryAgain(f"{topic.name}-{part.partition_index} has no leader")
                self._leaders[topic.name, part.partition_index] = part.leader_id

    def _metadata(self, topics: list[str] | None, may_create: bool = False) -> Struct:
        request = Struct(
            topics=None if topics is None else [Struct(name=name) for name in topics],
            allow_auto_topic_creation=may_create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        reply = self.any().ask(METADATA, METADATA_VERSION, request)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in reply.brokers}
        return reply

    def _list_offsets(
        self, leader: Connection, wanted: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, int]:
        topics = [
            Struct(
                name=name,
                partitions=[
                    Struct(partition_index=number, current_leader_epoch=-1, timestamp=place)
                    for (topic, number), place in wanted.items()
                    if topic == name
                ],
            )
            for name in sorted({topic for topic, _ in wanted})
        ]
        request = Struct(replica_id=-1, isolation_level=isolation, topics=topics)
        reply = leader.ask(LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        found = {}
        for topic in reply.topics:
            for part in topic.partitions:
                if not part.error_code:
                    found[topic.name, part.partition_index] = part.offset
                elif part.error_code not in RETRIABLE:
                    raise Refusal(part.error_code, f"offsets of {topic.name}-{part.partition_index}")
        return found

    def _to(self, node_id: int) -> Connection:
        if node_id not in self._addresses:
            raise TryAgain(f"broker {node_id} is away")
        return self._connected(self._addresses[node_id])

    def _connected(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(address)
        return self._connections[address]


def _address(text: str) -> Address:
    host, separator, port = text.strip().rpartition(":")
    if not separator or not port.isdigit():
        raise ValueError(f"kafka.bootstrap.servers must look like host:9092, not {text.strip()!r}")
    return host.strip("[]"), int(port)
