"""The transactional producers of a connection: one for each transaction that is open, and a few kept for the next.

To get to know the coordinator costs a producer two round trips and a write, so it is used again.
"""

from collections.abc import Callable
from threading import Lock
from uuid import uuid4

from penstock.client.errors import ClientError, Closed
from penstock.client.transactional import TransactionalPublisher

IDLE_MAX = 8  # Each is a thread here and a connection to each broker.

Key = tuple[str | None, float]  # The transactional id that was asked for, and the timeout of its transactions.


class TransactionalPool:
    """Any thread may use it."""

    def __init__(self, new: Callable[[str, float], TransactionalPublisher]) -> None:
        self._new = new
        self._idle: list[tuple[Key, TransactionalPublisher]] = []  # The longest idle first.
        self._busy_ids: set[str] = set()
        self._is_closed = False
        self._lock = Lock()  # Guards the three above.

    def borrow(self, key: Key) -> TransactionalPublisher:
        """One that nobody uses, known to the coordinator. Without an id, one whose id nobody else has."""
        publisher = self._take(key)
        try:
            publisher.open()
        except BaseException:
            publisher.is_usable = False
            self.give_back(key, publisher)
            raise
        return publisher

    def give_back(self, key: Key, publisher: TransactionalPublisher) -> None:
        with self._lock:
            self._busy_ids.discard(publisher.transactional_id)
            surplus = [publisher]
            if publisher.is_usable and not self._is_closed:
                self._idle.append((key, publisher))
                surplus = [each for _, each in self._idle[:-IDLE_MAX]]
                del self._idle[:-IDLE_MAX]
        for each in surplus:
            each.close()

    def close(self) -> None:
        """Those in use end with their transactions."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, publisher in idle:
            publisher.close()

    def _take(self, key: Key) -> TransactionalPublisher:
        transactional_id, timeout_s = key
        with self._lock:
            if self._is_closed:
                raise Closed("Cannot begin a transaction: the connection is closed.", "Open another.")
            if transactional_id in self._busy_ids:
                raise ClientError(
                    f"A transaction of {transactional_id!r} is open already.", "Give each that is open at once its own."
                )
            found = next((idle for idle in self._idle if idle[0] == key), None)
            if found is not None:
                self._idle.remove(found)
                publisher = found[1]
            else:
                publisher = self._new(transactional_id or f"penstock-{uuid4()}", timeout_s)
            self._busy_ids.add(publisher.transactional_id)
            return publisher
