"""Read, handle, publish: each message counts once, whatever breaks.

with queue.process("orders", group="billing") as step:
    for order in step:
        step.publish("invoices", invoice_for(order))

What the messages lead to is published in a transaction, together with how far the group has read, so that both happen
or neither. Messages are gathered in one transaction until there are `batch` of them, or for `batch_seconds`. When a
transaction has to be aborted, the same messages come again: that is why the loop must keep no state of its own.
The group's generation (KIP-447) keeps out a member whose partitions have gone to another, so a transactional id is not
tied to a partition.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from penstock.client import transaction
from penstock.client.delivery import Delivery
from penstock.client.errors import Closed, Fenced, TransactionAborted, TransactionFailed
from penstock.client.message import Content, Message, Receipt
from penstock.client.subscription import POLL_S, Subscription
from penstock.client.transactional import TransactionalPublisher

BATCH_MAX = 1000
BATCH_S_MAX = 0.1  # How long a reader of the results may have to wait for them. Kafka Streams has the same.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 2.0  # Doubled from one aborted transaction to the next.
REWIND_S_MAX = 60.0  # To ask how far the group has come: a transaction of its last member may have to time out first.

log = logging.getLogger("penstock.client")

Place = tuple[str, int]  # Topic and partition.


class Step(Subscription):
    """Made by `Connection.process`. For one thread, except `stop`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        *,
        group: str,
        start: str,
        timeout: float | None,
        batch: int,
        batch_seconds: float,
        owner: object,
        new_publisher: Callable[[], TransactionalPublisher],
        may_replace: bool,
        give_up_s: float,
    ) -> None:
        """`may_replace`: nobody else can have our transactional id, so who fences us is the broker's timeout."""
        self.owner = owner
        self._batch = batch
        self._batch_s = batch_seconds
        self._new_publisher = new_publisher
        self._may_replace = may_replace
        self._give_up_s = give_up_s
        self._publisher: TransactionalPublisher | None = None
        self._count = 0  # Messages done in the open transaction.
        self._begun_at = 0.0
        self._firsts: dict[Place, int] = {}  # Offset of the first message taken from each partition since the commit.
        self._done: dict[Place, int] = {}  # Offset to go on from, by partition. Part of the next commit.
        self._must_rewind = False
        self._failing_since: float | None = None
        self._retry_s = RETRY_S_MIN
        super().__init__(settings, topics, group=group, delivery=Delivery.EXACTLY_ONCE, start=start, timeout=timeout)

    # Publishing

    def publish(self, topic: str, value: Content, **options: Any) -> Future[Receipt]:
        """As `Connection.publish`: part of the transaction that the message in hand is part of.

        The future is resolved when it is stored; nobody sees it before the transaction is committed.
        """
        return self.publisher().publish(topic, value, **options)

    def publisher(self) -> TransactionalPublisher:
        """With a transaction open. librdkafka tells the coordinator of it with the first message."""
        if self.is_closed:
            raise Closed(
                f"Cannot publish what came of {self._names}: it is closed.", "Publish inside the `with` block."
            )
        publisher = self._opened_publisher()
        if not publisher.is_open:
            publisher.begin()
            self._begun_at = time.monotonic()
        return publisher

    def _opened_publisher(self) -> TransactionalPublisher:
        """Known to the coordinator, which has ended what one with its id has left open."""
        if self._publisher is None:
            publisher = self._new_publisher()
            try:
                publisher.open()
            except BaseException:
                publisher.close()
                raise
            self._publisher = publisher
        return self._publisher

    # What Subscription does, in a transaction

    def commit(self, *, include_last: bool = True) -> None:
        """Return when all messages so far are done and what was published can be seen.

        TransactionAborted when it could not be: what was published is gone, and the messages come again.
        """
        with self._lock:
            if include_last:
                self._in_hand_is_done()
            if not self._commit_or_rewind():
                raise TransactionAborted("The transaction was aborted.", "Ask for the next message: all come again.")

    def close(self) -> None:
        """Leave the group. What is not committed is aborted, and its messages go to another member, or come again."""
        self._stopping.set()
        with self._lock:
            if not self.is_closed:
                self._abort()
                self.is_closed = True
                self._consumer.close()
                if self._publisher is not None:
                    self._publisher.close()

    def __next__(self) -> Message:
        while True:
            try:
                return super().__next__()
            except StopIteration:
                # The end: of what is undone now, the messages come again.
                if self.finish():
                    raise

    def finish(self) -> bool:
        """Whether there is nothing left to do: all messages so far are done, or it is closed. Else they come again."""
        with self._lock:
            if self.is_closed:  # By another thread, which has aborted what was not done.
                return True
            self._in_hand_is_done()
            return self._commit_or_rewind()

    def __enter__(self) -> Self:
        transaction.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction.leave(self)
        try:
            if kind is None and not self.is_closed:
                self.commit()
        finally:
            self.close()

    @property
    def is_prompt(self) -> bool:
        return False

    @property
    def _wait_s_max(self) -> float:
        if not self._count:
            return POLL_S
        return min(POLL_S, max(0.0, self._begun_at + self._batch_s - time.monotonic()))

    def _subscribe(self) -> None:
        self._consumer.subscribe(list(self.topics), on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _take(self, raw: RawMessage) -> bool:
        if raw.error() is None:
            self._firsts.setdefault(_place(raw), _offset(raw))
            if self._must_rewind:  # Partitions went while we waited, and took a transaction with them.
                return False
            self.publisher()
        return super()._take(raw)

    def _mark_done(self) -> None:
        self._opened_publisher()
        self._in_hand_is_done()
        is_due = self._count and self._begun_at + self._batch_s <= time.monotonic()
        if is_due or self._must_rewind or self._count >= self._batch:
            self._commit_or_rewind()

    def _in_hand_is_done(self) -> None:
        raw, self._in_hand = self._in_hand, None
        if raw is not None:
            self._done[_place(raw)] = _offset(raw) + 1
            self._count += 1

    # Ending the transaction

    def _commit_or_rewind(self) -> bool:
        """Whether it is committed; else the messages come again. Raises when trying again is of no use."""
        if not self._must_rewind:
            try:
                self._commit_open()
            except TransactionFailed as failure:
                self._wait_or_raise(failure)
            else:
                return True
        self._rewind()
        return False

    def _commit_open(self) -> None:
        publisher = self._publisher
        if publisher is not None and publisher.is_open:
            offsets = [TopicPartition(*place, offset) for place, offset in self._done.items()]
            try:
                publisher.commit(offsets, self._consumer.consumer_group_metadata())
            except BaseException:
                self._abort()
                raise
        self._firsts.clear()
        self._forget()
        self._failing_since, self._retry_s = None, RETRY_S_MIN

    def _wait_or_raise(self, failure: TransactionFailed) -> None:
        """Raise `failure` when this has gone on for too long, or is not ours to mend."""
        if isinstance(failure, Fenced) and not self._may_replace:
            raise failure
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > self._give_up_s:
            raise failure
        log.warning("%s The messages come again.", failure.args[0])
        self._stopping.wait(self._retry_s)
        self._retry_s = min(RETRY_S_MAX, 2 * self._retry_s)

    def _abort(self) -> None:
        publisher = self._publisher
        if publisher is not None:
            publisher.abort()
            if not publisher.is_usable:
                publisher.close()
                self._publisher = None  # The next one has the same id: it ends what this one has left open.
        self._forget()
        self._must_rewind = True

    def _forget(self) -> None:
        self._in_hand, self._count = None, 0
        self._done.clear()

    def _rewind(self) -> None:
        """Go back to what the group has committed, in the partitions that we have taken messages from since."""
        self._opened_publisher()  # Ends what the one before it has left open: only then is it known what is committed.
        places = [TopicPartition(*place) for place in self._firsts]
        try:
            for found in self._consumer.committed(places, timeout=REWIND_S_MAX) if places else ():
                if found.error is not None:
                    raise KafkaException(found.error)
                first = self._firsts[found.topic, found.partition]
                self._seek(TopicPartition(found.topic, found.partition, found.offset if found.offset >= 0 else first))
        except KafkaException as exception:
            raise self._failure("receive", exception.args[0]) from exception
        self._firsts.clear()
        self._must_rewind = False

    def _seek(self, place: TopicPartition) -> None:
        assigned = {(each.topic, each.partition) for each in self._consumer.assignment()}
        if (place.topic, place.partition) in assigned:  # Else its new owner begins where the group stopped.
            self._consumer.seek(place)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Other members take over: what is done is committed before, or done again by them."""
        if self.is_closed:
            return
        if not self._must_rewind:
            try:
                self._commit_open()
            except TransactionFailed as failure:
                log.warning("%s The new owners of the partitions get the messages again.", failure.args[0])
        self._drop(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """They are with other members already."""
        if not self.is_closed:
            self._abort()
            self._drop(partitions)

    def _drop(self, partitions: list[TopicPartition]) -> None:
        for gone in partitions:
            self._firsts.pop((gone.topic, gone.partition), None)


def _place(raw: RawMessage) -> Place:
    topic, partition = raw.topic(), raw.partition()
    assert topic is not None and partition is not None, "only errors have no place"
    return topic, partition


def _offset(raw: RawMessage) -> int:
    offset = raw.offset()
    assert offset is not None, "only errors have no offset"
    return offset
