"""The way to a cluster: publish and subscribe.

with penstock.connect("localhost:9092") as connection:
    connection.publish("orders", "42 paid", key="42").result()
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self

from penstock.client.address import check_reachable, client_settings
from penstock.client.delivery import Delivery, served
from penstock.client.errors import Closed
from penstock.client.message import Content, Headers, Receipt
from penstock.client.publisher import Publisher
from penstock.client.subscription import Subscription

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
    promise = served(delivery)
    check_reachable(bootstrap_servers)
    return Connection(client_settings(bootstrap_servers, settings or {}), promise, publish_timeout)


class Connection:
    """Made by `connect`. Any thread may use it."""

    def __init__(self, settings: Mapping[str, Any], delivery: Delivery, publish_timeout: float) -> None:
        self._settings = settings
        self._delivery = delivery
        self._publish_timeout_s = publish_timeout
        self._publishers: dict[Delivery, Publisher] = {}
        self._subscriptions: list[Subscription] = []
        self._lock = Lock()  # Guards the two above and the next.
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

        Messages with one key go to one partition and stay in order. When too much is under way, this waits.
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

    def publisher(self, delivery: str | None = None) -> Publisher:
        """The publisher that keeps this promise. There is one for each promise, made when first used."""
        promise = self._promise(delivery)
        with self._lock:
            self._check_open("publish")
            if promise not in self._publishers:
                self._publishers[promise] = Publisher(
                    self._settings, delivery=promise, timeout_s=self._publish_timeout_s
                )
            return self._publishers[promise]

    def _promise(self, delivery: str | None) -> Delivery:
        return self._delivery if delivery is None else served(delivery)

    def _check_open(self, verb: str) -> None:
        if self._is_closed:
            raise Closed(f"Cannot {verb}: the connection is closed.", "Open another with penstock.connect().")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
