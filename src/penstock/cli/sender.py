"""Sends messages with librdkafka, keeps count, and says in the end what went wrong."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.cli.connection import DELIVERY_TIMEOUT_S, TIMEOUT_S, hint_for, producer, topic_metadata
from penstock.cli.messages import BadMessage, NewMessage
from penstock.cli.output import Failure, plural, print_json
from penstock.cli.reader import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

REQUEST_BYTES_MAX = MESSAGE_BYTES_MAX + (64 << 10)  # A message, its headers and the batch around it.
QUEUE_KIB_MAX = 40 << 10  # The largest message and some more. librdkafka may hold as much again in requests under way.
FAILURES_MAX = 1000  # Messages refused before we stop reading input that is evidently wrong.
POLL_EVERY = 64  # Messages between two looks at what came back; each look costs as much as a message.
FLUSH_POLL_S = 0.2  # How long Ctrl-C may have to wait.


class CodecName(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    ZERO = "0"


class MessageSender:
    def __init__(self, topic: str, bootstrap_server: str, codec: CodecName, acks: Acks, rate: float | None) -> None:
        self._topic = topic
        self._bootstrap_server = bootstrap_server
        self._rate = rate
        self._failures: Counter[tuple[str, str]] = Counter()
        self._taken = 0  # Messages that librdkafka took; those it could not deliver are in `_failures` too.
        self._bytes = 0
        self._is_hopeless = False  # Nothing will be delivered any more: stop reading input.
        self._has_stopped = False
        self._interrupted = False
        self._producer = producer(
            bootstrap_server,
            {
                "acks": acks.value,
                # Several would be faster, but one that is sent again would land behind those after it.
                "max.in.flight.requests.per.connection": 1,
                "compression.type": codec.value,
                "message.max.bytes": REQUEST_BYTES_MAX,
                "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
                "request.timeout.ms": int(TIMEOUT_S * 1000),
                "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
                "delivery.report.only.error": True,  # A call per message would cost more than sending it.
                "on_delivery": self._on_delivery,
            },
        )
        from confluent_kafka import KafkaException

        self._refusal = KafkaException
        topic_metadata(self._producer, topic, f"send to topic '{topic}'", bootstrap_server)
        self._started_at = time.monotonic()

    def send_all(self, messages: Iterator[NewMessage]) -> str | None:
        """Returns when everything is delivered or given up; what was wrong with the input, if anything was."""
        complaint = None
        try:
            for message in messages:
                self._send(message)
                if self._is_hopeless or self._failures.total() >= FAILURES_MAX:
                    self._has_stopped = True
                    break
                if self._rate is not None:
                    self._pace(self._rate)
        except BadMessage as error:
            complaint = str(error)
        except KeyboardInterrupt:
            self._interrupted = True
        if self._is_hopeless:
            self._producer.purge()  # The rest would fail for the same reason, after as long a wait.
        while self._producer.flush(FLUSH_POLL_S):
            pass
        return complaint

    def _send(self, message: NewMessage) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) or None,
                    partition=-1 if message.partition is None else message.partition,
                    timestamp=message.timestamp or 0,
                )
            except BufferError:
                self._producer.poll(FLUSH_POLL_S)
            except self._refusal as exception:
                self._count_failure(exception.args[0])
                return
            else:
                break
        self._taken += 1
        self._bytes += len(message.value or b"") + len(message.key or b"")
        if self._taken % POLL_EVERY == 0:
            self._producer.poll(0)

    def _pace(self, rate: float) -> None:
        """Wait until the next message is due, while the client goes on working."""
        while (left_s := self._started_at + self._taken / rate - time.monotonic()) > 0:
            self._producer.poll(min(left_s, FLUSH_POLL_S))

    def _on_delivery(self, error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            self._taken -= 1
            self._count_failure(error)

    def _count_failure(self, error: "KafkaError") -> None:
        name, reason = error.name(), error.str().rpartition(": ")[2]
        if name in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            name, reason = self._failures.most_common(1)[0][0]
        self._failures[name, reason] += 1
        if name in ("_MSG_TIMED_OUT", "_TRANSPORT", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
            self._is_hopeless = True

    def report(self, complaint: str | None, *, as_json: bool) -> None:
        """The summary; Failure when anything was not sent."""
        seconds = time.monotonic() - self._started_at
        failed = self._failures.total()
        if as_json:
            print_json(
                {
                    "topic": self._topic,
                    "sent": self._taken,
                    "failed": failed,
                    "bytes": self._bytes,
                    "seconds": round(seconds, 3),
                }
            )
        else:
            speed = f" ({self._taken / seconds:,.0f}/s)" if seconds >= 1 else ""
            print(f"Sent {plural(self._taken, 'message')} to {self._topic} in {seconds:.2f} s{speed}.", file=sys.stderr)
        if self._interrupted:
            raise KeyboardInterrupt
        if failed:
            raise self._delivery_failure(failed)
        if complaint is not None:
            raise Failure(
                f"Stopped at bad input: {complaint}.",
                hint=f"{plural(self._taken, 'message')} before it {'was' if self._taken == 1 else 'were'} sent. "
                "Correct the input and send the rest.",
                code="BAD_INPUT",
            )

    def _delivery_failure(self, failed: int) -> Failure:
        reasons = [f"{text} ({name})" for name, text in self._failures]
        if len(reasons) > 1:
            counts = self._failures.values()
            reasons = [f"{count:,} x {reason}" for count, reason in zip(counts, reasons, strict=True)]
        name = self._failures.most_common(1)[0][0][0]
        hint = hint_for(name, self._bootstrap_server, self._topic)
        if name == "_UNKNOWN_PARTITION":
            hint = f"Let the key decide: without --partition, and with --repartition for JSON. {hint}"
        rest = ", and the rest of the input was not read" if self._has_stopped else ""
        return Failure(
            f"{plural(failed, 'message')} could not be sent to '{self._topic}'{rest}: {'; '.join(reasons)}.",
            hint=hint,
            code=name,
        )
