"""A group member that reads topics: an iterator of messages.

At least once: a message is done when the next one is asked for, or when the `with` block ends well; what is done is
committed in the background. At most once: a message is committed before it is handed out.
librdkafka keeps a long poll open at the broker, so a message arrives when it is published, not at some interval.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import Message as RawMessage

from penstock.client.delivery import Delivery, consumer_settings
from penstock.client.errors import Closed, SubscriptionFailed, hint_for, why
from penstock.client.message import Message, message_of

POLL_S = 0.1  # How long `stop`, or Ctrl-C, may have to wait. Messages come at once.
NEW_TOPIC_S = 2.0  # For a topic to be made by asking for it.
NEW_TOPIC_POLL_S = 0.05

# librdkafka reports these and goes on trying by itself.
_PASSING = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_MAX_POLL_EXCEEDED"})
# The partition has gone to another member, which will get the message again, or has it already.
_NOT_OURS = frozenset(
    {"_STATE", "_ASSIGNMENT_LOST", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS"}
)

log = logging.getLogger("penstock.client")


class Subscription:
    """For one thread, except `stop`, which any thread may call."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        *,
        group: str,
        delivery: Delivery,
        start: str,
        timeout: float | None,
    ) -> None:
        self.topics = tuple(topics)
        self.group = group
        self._delivery = delivery
        self._timeout = timeout
        self._in_hand: RawMessage | None = None  # Handed out, not yet done. None with at most once.
        self._stopping = threading.Event()
        self.is_closed = False
        self._lock = threading.Lock()  # Held while librdkafka is at work: it must not be closed meanwhile.
        self._consumer = Consumer({**consumer_settings(delivery, group, start), **settings})
        self._subscribe()

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds without one, or when the subscription was stopped.

        Asking for the next message says that the one before it is done.
        """
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = inf if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            with self._lock:
                if self.is_closed:
                    raise Closed(f"Cannot receive from {self._names}: the subscription is closed.", "Subscribe again.")
                self._mark_done()
                if self._stopping.is_set():
                    return None
                raw = self._consumer.poll(min(left_s, self._wait_s_max))
                if raw is not None and self._take(raw):
                    return message_of(raw)
            if raw is None and give_up_at is not None and time.monotonic() >= give_up_at:
                return None

    def commit(self, *, include_last: bool = True) -> None:
        """Return when the broker has noted that all messages so far, the last one included, are done."""
        with self._lock:
            if include_last:
                self._mark_done()
            if self._delivery is not Delivery.AT_MOST_ONCE and not self.is_closed:
                self._commit()

    def mark_done(self) -> None:
        """Say that the last message is done, as asking for the next one would. The next commit includes it."""
        with self._lock:
            self._mark_done()

    @property
    def is_prompt(self) -> bool:
        """Whether `receive(0)` never waits for the broker."""
        return self._delivery is not Delivery.AT_MOST_ONCE

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """End the iteration before its next message. Any thread may call this."""
        self._stopping.set()

    def close(self) -> None:
        """Leave the group. A message that is not done goes to another member, or to the next subscription."""
        self._stopping.set()
        with self._lock:
            if not self.is_closed:
                self.is_closed = True
                self._consumer.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if self.is_closed:
            raise StopIteration
        try:
            message = self.receive(self._timeout)
        except Closed:
            message = None  # By another thread, since we looked.
        if message is None:
            raise StopIteration
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.mark_done()
        self.close()

    @property
    def _wait_s_max(self) -> float:
        """For the next message, before we look around again."""
        return POLL_S

    def _subscribe(self) -> None:
        self._consumer.subscribe(list(self.topics))

    @property
    def _names(self) -> str:
        return ", ".join(map(repr, self.topics))

    def _take(self, raw: RawMessage) -> bool:
        """Whether the message can be handed out; SubscriptionFailed when there will be none."""
        error = raw.error()
        if error is not None:
            if error.name() == "UNKNOWN_TOPIC_OR_PART" and self._have_appeared():
                return False
            if error.name() not in _PASSING:
                raise self._failure("receive", error)
            log.warning("receiving from %s is interrupted: %s", self._names, why(error))
            return False
        if self._delivery is Delivery.AT_MOST_ONCE:
            return self._commit(raw)
        self._in_hand = raw
        return True

    def _have_appeared(self) -> bool:
        """Whether the topics exist now: the broker may just have made them because we asked for them."""
        give_up_at = time.monotonic() + NEW_TOPIC_S
        while missing := [name for name in self.topics if not self._exists(name)]:
            if time.monotonic() > give_up_at:
                log.warning("there is no topic %s", ", ".join(missing))
                return False
            time.sleep(NEW_TOPIC_POLL_S)
        return True

    def _exists(self, topic: str) -> bool:
        try:
            return self._consumer.list_topics(topic, timeout=NEW_TOPIC_S).topics[topic].error is None
        except KafkaException:
            return False

    def _mark_done(self) -> None:
        raw, self._in_hand = self._in_hand, None
        if raw is not None and not self.is_closed:
            try:
                self._consumer.store_offsets(message=raw)
            except KafkaException as exception:
                if exception.args[0].name() not in _NOT_OURS:
                    raise self._failure("commit", exception.args[0]) from exception

    def _commit(self, raw: RawMessage | None = None) -> bool:
        """Whether the commit, of one message or of all that are done, was ours to make."""
        try:
            if raw is None:
                self._consumer.commit(asynchronous=False)
            else:
                self._consumer.commit(message=raw, asynchronous=False)
        except KafkaException as exception:
            error = exception.args[0]
            if error.name() == "_NO_OFFSET":
                return True  # Nothing new to commit.
            if error.name() in _NOT_OURS:
                return False
            raise self._failure("commit", error) from exception
        return True

    def _failure(self, verb: str, error: KafkaError) -> SubscriptionFailed:
        what = f"Cannot {verb} {'what came ' if verb == 'commit' else ''}from {self._names}: {why(error)}."
        return SubscriptionFailed(what, hint_for(error, self.topics[0]), error.name())
