"""The way to a cluster: publish and subscribe, alone or in transactions.

with penstock.connect("localhost:9092") as connection:
    connection.publish("orders", "42 paid", key="42").result()
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self
from uuid import uuid4

from penstock.client.address import check_reachable, client_settings
from penstock.client.delivery import Delivery, producer_settings, promise_of
from penstock.client.errors import ClientError, Closed
from penstock.client.message import Content, Headers, Receipt
from penstock.client.process import BATCH_MAX, BATCH_S_MAX, Step
from penstock.client.publisher import Publisher
from penstock.client.subscription import Subscription
from penstock.client.transaction import TRANSACTION_TIMEOUT_S, Transaction, open_of
from penstock.client.transactional import TransactionalPublisher
from penstock.client.transactional_pool import TransactionalPool

PUBLISH_TIMEOUT_S = 120.0  # As the Java client: longer than any election takes.


def connect(
    bootstrap_servers: str = "localhost:9092",
    *,
    delivery: str = "at-least-once",
    publish_timeout: float = PUBLISH_TIMEOUT_S,
    settings: Mapping[str, Any] | None = None,
) -> "Connection":
    """A connection to the cluster that these brokers belong to; Unreachable when none of them can be.

    `delivery` is what publish and subscribe promise unless told otherwise. A message that is not acknowledged within
    `publish_timeout` seconds is given up. `settings` go to librdkafka as they are: TLS, passwords, tuning.
    """
    promise = promise_of(delivery)
    check_reachable(bootstrap_servers)
    return Connection(client_settings(bootstrap_servers, settings or {}), promise, publish_timeout)


class Connection:
    """Made by `connect`. Any thread may use it."""

    def __init__(self, settings: Mapping[str, Any], delivery: Delivery, publish_timeout: float) -> None:
        self._settings = settings
        self._delivery = delivery
        self._publish_timeout_s = publish_timeout
        self._publishers: dict[Delivery, Publisher] = {}
        self._pool = TransactionalPool(self._transactional_publisher)
        self._subscriptions: list[Subscription] = []
        self._lock = Lock()  # Guards publishers, subscriptions and the next.
        self._is_closed = False

    def publish(
        self,
        topic: str,
        value: Content,
        *,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        delivery: str | None = None,
    ) -> Future[Receipt]:
        """A future at once, resolved when the message is delivered; its exception is DeliveryFailed when it was not.

        Messages with one key go to one partition and stay in order. When too much is under way, this waits. Inside a
        `with` block of `transaction` or `process` it is part of that, unless another delivery is asked for.
        """
        publisher = self.publisher(delivery)
        return publisher.publish(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    def subscribe(
        self,
        topic: str | Sequence[str],
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        timeout: float | None = None,
        delivery: str | None = None,
    ) -> Subscription:
        """An iterator of messages, for a `with` block. Each message goes to one member of each group.

        `start` is where a group begins that has not read the topic before. With `timeout`, the iteration ends after so
        many seconds without a message.
        """
        with self._lock:
            self._check_open("subscribe")
            subscription = Subscription(
                self._settings,
                [topic] if isinstance(topic, str) else topic,
                group=group,
                delivery=self._promise(delivery),
                start=start,
                timeout=timeout,
            )
            self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [subscription]
            return subscription

    def transaction(self, *, id: str | None = None, timeout: float = TRANSACTION_TIMEOUT_S) -> Transaction:
        """For a `with` block: what is published in it is seen when the block has ended, all of it or none.

        An exception in the block aborts it. With an `id`, a process that begins a transaction shuts out all that have
        used the same one before. What is open for longer than `timeout` seconds, the broker aborts.
        """
        return Transaction(self, pool=self._pool, key=(id, timeout))

    def process(
        self,
        topic: str | Sequence[str],
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        timeout: float | None = None,
        batch: int = BATCH_MAX,
        batch_seconds: float = BATCH_S_MAX,
        id: str | None = None,
        transaction_timeout: float = TRANSACTION_TIMEOUT_S,
    ) -> Step:
        """An iterator of messages, for a `with` block in which each counts once: with what is published for it.

        Messages and results go into one transaction, until there are `batch` messages or for `batch_seconds`. With an
        `id`, which each process must have for itself and keep when it is restarted, nobody waits for what it has left
        open when it died. See `subscribe` for the rest, and docs/python-client.md.
        """
        name = id or f"{group}-{uuid4()}"
        with self._lock:
            self._check_open("process")
            step = Step(
                self._settings,
                [topic] if isinstance(topic, str) else topic,
                group=group,
                start=start,
                timeout=timeout,
                batch=batch,
                batch_seconds=batch_seconds,
                owner=self,
                new_publisher=lambda: self._transactional_publisher(name, transaction_timeout),
                may_replace=id is None,
                give_up_s=self._publish_timeout_s,
            )
            self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [step]
            return step

    def flush(self) -> None:
        """Return when everything published so far is delivered or given up."""
        for publisher in list(self._publishers.values()):
            publisher.flush()

    def close(self) -> None:
        """Leave all groups, and return when everything published is delivered or given up."""
        with self._lock:
            self._is_closed = True
        for subscription in self._subscriptions:
            subscription.stop()
        for subscription in self._subscriptions:
            subscription.close()
        for publisher in self._publishers.values():
            publisher.close()
        self._pool.close()

    def publisher(self, delivery: str | None = None) -> Publisher:
        """The publisher that keeps this promise: of the open transaction, or one for each promise, made when used."""
        transaction = open_of(self)
        promise = self._promise(delivery)
        if transaction is not None and (delivery is None or promise is Delivery.EXACTLY_ONCE):
            return transaction.publisher()
        if promise is Delivery.EXACTLY_ONCE:
            raise ClientError(
                "There is no transaction to publish in, which exactly once needs.",
                "Publish inside `with connection.transaction():` or `with connection.process(…):`.",
            )
        with self._lock:
            self._check_open("publish")
            if promise not in self._publishers:
                settings = {**producer_settings(promise, self._publish_timeout_s), **self._settings}
                self._publishers[promise] = Publisher(settings)
            return self._publishers[promise]

    def _transactional_publisher(self, transactional_id: str, transaction_timeout_s: float) -> TransactionalPublisher:
        return TransactionalPublisher(
            self._settings,
            transactional_id=transactional_id,
            timeout_s=self._publish_timeout_s,
            transaction_timeout_s=transaction_timeout_s,
        )

    def _promise(self, delivery: str | None) -> Delivery:
        return self._delivery if delivery is None else promise_of(delivery)

    def _check_open(self, verb: str) -> None:
        if self._is_closed:
            raise Closed(f"Cannot {verb}: the connection is closed.", "Open another with penstock.connect().")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
