"""One librdkafka producer that publishes in transactions, one after the other.

What librdkafka reports becomes one of three errors: TransactionAborted (nothing happened, do it again), Fenced (this
producer is finished), TransactionFailed (nobody knows). After the last two the producer is of no more use.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.client.delivery import transactional_settings
from penstock.client.errors import (
    ClientError,
    DeliveryFailed,
    Fenced,
    NotServed,
    TransactionAborted,
    TransactionFailed,
    hint_for,
    why,
)
from penstock.client.message import Receipt
from penstock.client.publisher import Publisher

RETRY_S = 0.1  # Between two attempts at what librdkafka says may be tried again.
LATE_S_MAX = 1.0  # How much later than it was told to librdkafka may come back.
_FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})
_NOT_SERVED = frozenset({"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION", "INVALID_REQUEST"})
# Of a message that would be refused again.
_NOT_AGAIN = frozenset(
    {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP", "TOPIC_EXCEPTION"}
    | {"TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_INVALID_ARG"}
)
_PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})  # What an abort does to messages under way.


class TransactionalPublisher(Publisher):
    """For one transaction at a time, and one thread, except `publish`."""

    def __init__(
        self, settings: Mapping[str, Any], *, transactional_id: str, timeout_s: float, transaction_timeout_s: float
    ) -> None:
        self.transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._transaction_timeout_s = transaction_timeout_s
        self._is_known = False  # To the coordinator.
        self.is_open = False  # A transaction is.
        self.is_usable = True
        self._failure: DeliveryFailed | None = None  # Of the first message in this transaction that was not taken.
        super().__init__({**transactional_settings(transactional_id, timeout_s, transaction_timeout_s), **settings})

    def open(self) -> None:
        """Make it known to the coordinator, which ends what another process has left open under this id."""
        if not self._is_known:
            self._call("begin", self._producer.init_transactions)
            self._is_known = True

    def begin(self) -> None:
        self._failure = None
        self._call("begin", self._producer.begin_transaction)
        self.is_open = True

    def commit(self, offsets: list[TopicPartition] | None = None, group: Any = None) -> None:
        """Return when all of it can be seen, the offsets of the group included.

        TransactionAborted when none ever will be: it is aborted then. DeliveryFailed when that is a message's fault.
        """
        try:
            self._check_taken()
            if offsets:
                self._send_offsets(offsets, group)
            self._call("commit", self._producer.commit_transaction)
        except TransactionAborted:
            self.abort()
            if self._failure is None:
                raise
            if self._failure.code in _NOT_AGAIN:
                raise self._failure from None
            raise self._aborted(str(self._failure), self._failure.code) from self._failure
        self.is_open = False

    def abort(self) -> None:
        """Return when nothing of it will ever be seen. A producer that cannot tell is of no more use."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            self._call("abort", self._producer.abort_transaction)
        except TransactionFailed:
            self.is_usable = False  # The broker aborts it, by its timeout or when the next producer of this id comes.

    def close(self) -> None:
        """End it, and what it has open. Twice is as good as once."""
        self.abort()
        if not self.is_usable:
            self._producer.purge()
        super().close()

    def _fail(self, future: Future[Receipt], error: KafkaError, topic: str) -> None:
        super()._fail(future, error, topic)
        failure = future.exception()
        if self._failure is None and error.name() not in _PURGED and isinstance(failure, DeliveryFailed):
            self._failure = failure

    def _check_taken(self) -> None:
        """What librdkafka itself has refused to take, it does not remind us of."""
        if self._failure is not None:
            raise self._aborted(str(self._failure), self._failure.code)

    def _send_offsets(self, offsets: list[TopicPartition], group: Any) -> None:
        """TransactionAborted when the group's coordinator does not answer within the transaction's time.

        librdkafka takes a timeout for this and never looks at it (its issue 5456, not mended in 2.16). A broker that is
        dead is soon no more part of the cluster, and librdkafka forgets it, except here: it waits until some other
        connection comes or goes (5511), which may be never.
        """
        producer, timeout_s = self._producer, self._transaction_timeout_s

        def send() -> None:
            producer.send_offsets_to_transaction(offsets, group, timeout_s)

        try:
            self._call("commit", lambda: _in_time(send, timeout_s + LATE_S_MAX), give_up_s=0)
        except TransactionFailed as failure:
            if failure.code != "_TIMED_OUT":
                raise
            self.is_usable = False  # It still waits for the answer.
            raise self._aborted(str(failure), failure.code) from failure
        except TimeoutError as error:
            self.is_usable = self.is_open = False  # Nor does it abort: the next producer of this id has that done.
            raise self._aborted("the group's coordinator did not answer", "_TIMED_OUT") from error

    def _call(self, verb: str, function: Callable[[], object], give_up_s: float | None = None) -> None:
        """Have librdkafka do it, again if need be: it waits for as long as the transaction may take."""
        give_up_at = time.monotonic() + (self._timeout_s if give_up_s is None else give_up_s)
        while True:
            try:
                function()
                return
            except KafkaException as exception:
                error = exception.args[0]
                if error.retriable() and not error.fatal() and time.monotonic() < give_up_at:
                    time.sleep(RETRY_S)
                    continue
                raise self._error(verb, error) from exception

    def _error(self, verb: str, error: KafkaError) -> ClientError:
        if error.txn_requires_abort() and not error.fatal():
            return self._aborted(why(error), error.name())
        self.is_usable = False
        what = f"Cannot {verb} the transaction of {self.transactional_id!r}: {why(error)}."
        if error.name() in _FENCED or "fenced" in why(error).lower():
            return Fenced(
                what,
                "Either another process has begun with this transactional id: give each its own. Or it was open for "
                f"longer than {self._transaction_timeout_s:g} seconds, and the broker has aborted it: do less in one, "
                "or raise its timeout.",
                error.name(),
            )
        if verb == "begin" and error.name() in _NOT_SERVED:
            return NotServed(what, 'The broker has no transactions. Use delivery="at-least-once".', error.name())
        hint = hint_for(error, self.transactional_id)
        if not hint and verb == "commit":
            hint = "It may have been committed or not: look at what the topics hold before doing it again."
        return TransactionFailed(what, hint or "See that the broker runs and can be reached.", error.name())

    def _aborted(self, reason: str, code: str | None) -> TransactionAborted:
        what = f"The transaction of {self.transactional_id!r} was aborted: {reason.rstrip('.')}."
        return TransactionAborted(what, "Nothing of it will be seen. Do it again.", code)


def _in_time(function: Callable[[], None], timeout_s: float) -> None:
    """Call it; TimeoutError when it does not come back. The thread that waits for it is left behind then."""
    done: Future[None] = Future()

    def call() -> None:
        try:
            function()
        except BaseException as error:  # Whatever it is, it is raised where it is waited for.
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=call, name="penstock offsets", daemon=True).start()
    done.result(timeout_s)
