"""One librdkafka producer and the thread that hears of its deliveries.

librdkafka gathers messages into batches, picks partitions, sends again what was not acknowledged; we turn its callbacks
into futures. Memory is bounded by its queue: with that full, `publish` waits.
"""

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage

from penstock.client.errors import Closed, DeliveryFailed, hint_for, why
from penstock.client.message import Content, Headers, Receipt, header_list, receipt_of

POLL_S = 0.2  # How long closing, or Ctrl-C, may have to wait. Callbacks come at once.
FULL_POLL_S = 0.01  # How long to wait for room before looking again.
ANY_PARTITION = -1
NO_TIMESTAMP = 0

log = logging.getLogger("penstock.client")


class Publisher:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._producer = Producer(dict(settings))
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=_serve_callbacks, args=(self._producer, self._stopping), name="penstock publisher", daemon=True
        )
        self._thread.start()
        # A program that ends without closing has still published what it published.
        self._finish = weakref.finalize(self, _flush_and_stop, self._producer, self._stopping, self._thread)

    def publish(self, topic: str, value: Content, **options: Any) -> Future[Receipt]:
        """A future for the receipt. Waits while the queue is full."""
        while (future := self.try_publish(topic, value, **options)) is None:
            time.sleep(FULL_POLL_S)
        return future

    def try_publish(
        self,
        topic: str,
        value: Content,
        *,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Future[Receipt] | None:
        """A future for the receipt, or None when the queue is full."""
        if self._stopping.is_set():
            raise Closed(f"Cannot publish to {topic!r}: the connection is closed.", "Publish before closing it.")
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()  # It cannot be taken back, so cancelling must not look as if it could.

        def on_delivery(error: KafkaError | None, raw: RawMessage) -> None:
            if error is None:
                future.set_result(receipt_of(raw))
            else:
                self._fail(future, error, topic)

        try:
            self._producer.produce(
                topic,
                value=value,
                key=key,
                headers=header_list(headers),
                partition=ANY_PARTITION if partition is None else partition,
                timestamp=NO_TIMESTAMP if timestamp is None else timestamp,
                on_delivery=on_delivery,
            )
        except BufferError:
            return None
        except KafkaException as exception:
            self._fail(future, exception.args[0], topic)
        return future

    def _fail(self, future: Future[Receipt], error: KafkaError, topic: str) -> None:
        what = f"Cannot publish to {topic!r}: {why(error)}."
        future.set_exception(DeliveryFailed(what, hint_for(error, topic), error.name()))

    def flush(self) -> None:
        """Return when everything published so far is delivered or given up."""
        _flush(self._producer)

    def close(self) -> None:
        """Flush, and end the thread. Twice is as good as once."""
        self._finish()


def _serve_callbacks(producer: Producer, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            producer.poll(POLL_S)
        except KafkaException as exception:  # A fatal one, which every future will hear of.
            log.debug("publishing has failed: %s", why(exception.args[0]))
            stopping.wait(POLL_S)


def _flush(producer: Producer) -> None:
    while True:
        try:
            if not producer.flush(POLL_S):
                return
        except KafkaException as exception:  # A fatal one, told once. What is left fails with it.
            log.debug("publishing has failed: %s", why(exception.args[0]))


def _flush_and_stop(producer: Producer, stopping: threading.Event, thread: threading.Thread) -> None:
    try:
        _flush(producer)
    except KeyboardInterrupt:
        producer.purge()  # Who presses Ctrl-C twice wants to go; the futures hear of it.
        producer.flush(POLL_S)
        raise
    finally:
        stopping.set()
        thread.join()
