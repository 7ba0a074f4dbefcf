"""Messages that are seen together, or not at all.

with queue.transaction():
    queue.publish("orders", "42 paid")
    queue.publish("stock", "-1")
"""

from concurrent.futures import Future
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, Self

from penstock.client.errors import ClientError
from penstock.client.message import Content, Receipt
from penstock.client.transactional import TransactionalPublisher
from penstock.client.transactional_pool import Key, TransactionalPool

TRANSACTION_TIMEOUT_S = 30.0  # Kafka's default is a minute: so long readers wait for a process that died.


class Open(Protocol):
    """What a connection's `publish` goes to inside of a `with` block."""

    owner: object

    def publisher(self) -> TransactionalPublisher: ...


# Those whose `with` blocks the running code is in: of this thread, of this task and of tasks begun in it.
_OPEN: ContextVar[tuple[Open, ...]] = ContextVar("penstock transactions", default=())


def enter(transaction: Open) -> None:
    if open_of(transaction.owner) is not None:
        raise ClientError("A transaction is open here already.", "End it before the next one: they do not nest.")
    _OPEN.set((*_OPEN.get(), transaction))


def leave(transaction: Open) -> None:
    _OPEN.set(tuple(each for each in _OPEN.get() if each is not transaction))


def open_of(owner: object) -> Open | None:
    """The transaction of this connection that the running code is in."""
    return next((each for each in _OPEN.get() if each.owner is owner), None)


class Transaction:
    """Made by `Connection.transaction`, for one `with` block."""

    def __init__(self, owner: object, *, pool: TransactionalPool, key: Key) -> None:
        self.owner = owner
        self._pool = pool
        self._key = key
        self._publisher: TransactionalPublisher | None = None

    def publisher(self) -> TransactionalPublisher:
        if self._publisher is None:
            raise ClientError("The transaction is not open.", "Publish inside its `with` block.")
        return self._publisher

    def publish(self, topic: str, value: Content, **options: Any) -> Future[Receipt]:
        """As `Connection.publish`. The future is resolved when the message is stored; it counts once the block ends."""
        return self.publisher().publish(topic, value, **options)

    def begin(self) -> None:
        self._publisher = self._pool.borrow(self._key)
        try:
            self._publisher.begin()
        except BaseException:
            self._end()
            raise

    def commit(self) -> None:
        """Return when all of it can be seen; TransactionAborted, DeliveryFailed or Fenced when none ever will be."""
        try:
            self.publisher().commit()
        finally:
            self._end()

    def abort(self) -> None:
        """Return when none of it will ever be seen; at once when it is not open."""
        self._end()

    def _end(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.abort()  # If it is still open.
            self._pool.give_back(self._key, publisher)

    def __enter__(self) -> Self:
        enter(self)
        try:
            self.begin()
        except BaseException:
            leave(self)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        if kind is None:
            self.commit()
        else:
            self.abort()
