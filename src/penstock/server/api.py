"""The table of served APIs: each handler file registers itself here, and what is advertised is read off the table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

from penstock.server.authentication import Authentication, BrokerIdentity
from penstock.wire.codec import Struct
from penstock.wire.produce import ProduceStart

if TYPE_CHECKING:
    from penstock.server.connection import Reply
    from penstock.server.context import Context
    from penstock.server.prepared_fetch import PreparedFetch


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    ALTER_PARTITION = 56
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(slots=True)
class Habits:
    """What the last requests over one connection were like: the next one of its kind is mostly alike."""

    produce_start: ProduceStart | None = None  # Of the last Produce.
    prepared_fetch: "PreparedFetch | None" = None  # The answer to the next Fetch, if it is as expected.
    fetched_last: tuple[str | UUID, int] | None = None  # The last partition whose records a Fetch was answered with.


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """What is known of a request before it is read. A connection's next request of the same kind may share it."""

    api_key: int
    version: int
    client_id: str | None
    client_host: str = ""
    throttle_ms: int = 0  # Known before work began: its sender uses more of the broker's time than it may.
    habits: Habits = field(default_factory=Habits)
    authentication: Authentication = field(default_factory=Authentication)  # The connection's.

    @property
    def broker(self) -> BrokerIdentity | None:
        """The broker that the connection is of, if it has proved it. See `require_broker`."""
        return self.authentication.broker


# A handler answers at once, or later through an awaitable. It may raise Refused only where the reply has a place for a
# top-level error code; errors of single topics and partitions go into the reply.
Handler = Callable[["Context", RequestHeader, Struct], Struct | Awaitable[Struct]]
H = TypeVar("H", bound=Handler)


async def awaited(answer: Struct | Awaitable[Struct]) -> Struct:
    """A handler's answer, at once or later."""
    if isinstance(answer, Struct):
        return answer
    later: Awaitable[Struct] = answer  # A Struct may have any attribute, for mypy.
    return await later


# The hot requests read their frame themselves and fill the reply when they can.
RawHandler = Callable[["Context", RequestHeader, memoryview, int, "Reply"], None]
R = TypeVar("R", bound=RawHandler)


class Api(NamedTuple):
    key: ApiKey
    versions: range
    advertised_min: int  # Below versions.start only where clients must see a version that is then refused.
    handler: Handler | None
    raw_handler: RawHandler | None = None
    # Passed on to the controller by every other broker. Should none answer, it is handled where it came, so the handler
    # has to say NOT_CONTROLLER there, which makes clients look for the controller again.
    is_at_controller: bool = False
    is_advertised: bool = True  # False for what brokers ask of each other.


APIS: dict[int, Api] = {}


def handler(
    key: ApiKey,
    versions: range,
    advertised_min: int | None = None,
    *,
    is_at_controller: bool = False,
    is_advertised: bool = True,
) -> Callable[[H], H]:
    """Serve `versions` of `key` with the decorated function."""

    def register(function: H) -> H:
        assert key not in APIS, f"{key!r} has two handlers"
        APIS[key] = Api(
            key,
            versions,
            versions.start if advertised_min is None else advertised_min,
            function,
            is_at_controller=is_at_controller,
            is_advertised=is_advertised,
        )
        return function

    return register


def raw_handler(key: ApiKey, versions: range, advertised_min: int | None = None) -> Callable[[R], R]:
    """Like `handler`, for a function that takes (context, header, frame, position, reply)."""

    def register(function: R) -> R:
        assert key not in APIS, f"{key!r} has two handlers"
        APIS[key] = Api(key, versions, versions.start if advertised_min is None else advertised_min, None, function)
        return function

    return register
