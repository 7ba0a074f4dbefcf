"""The three promises of delivery, and what each asks of librdkafka."""

from enum import StrEnum
from typing import Any

from penstock.client.errors import ClientError

QUEUE_KIB_MAX = 64 << 10  # Messages that wait to be sent; with it full, publishing waits. Kafka's default is 1 GiB.
PREFETCH_KIB_MAX = 16 << 10  # Messages received ahead, per subscription.
COMMIT_INTERVAL_MS = 1000  # What a consumer that crashes gets again is at most a second's work.
TRANSACTION_RETRY_MS = 10  # At first; doubled up to a second.

FETCH_WAIT_MS = 100  # Kafka's default is 500. An idle subscription then asks ten times a second.


class Delivery(StrEnum):
    """What happens to a message when something breaks."""

    AT_MOST_ONCE = "at-most-once"  # Lost, perhaps; twice, never.
    AT_LEAST_ONCE = "at-least-once"  # Twice, perhaps; lost, never.
    EXACTLY_ONCE = "exactly-once"  # Published in transactions: all of it is seen, or none.


def promise_of(delivery: str) -> Delivery:
    """The promise by its name; ClientError for a name that is none."""
    try:
        return Delivery(delivery)
    except ValueError:
        names = ", ".join(f'"{each}"' for each in Delivery)
        raise ClientError(f"There is no delivery {delivery!r}.", f"Choose one of {names}.") from None


def producer_settings(delivery: Delivery, timeout_s: float) -> dict[str, Any]:
    common: dict[str, Any] = {
        "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
        "message.timeout.ms": int(timeout_s * 1000),
        "partitioner": "murmur2_random",  # As the Java client: a key has one partition, whoever publishes.
    }
    if delivery is Delivery.AT_MOST_ONCE:
        return {**common, "acks": 0, "message.send.max.retries": 0}
    # Idempotent: what the client sends again after a broken connection is not stored twice, and order holds.
    return {**common, "acks": "all", "enable.idempotence": True}


def transactional_settings(transactional_id: str, timeout_s: float, transaction_timeout_s: float) -> dict[str, Any]:
    """Of a producer that publishes in transactions. A message cannot wait longer than its transaction."""
    return {
        **producer_settings(Delivery.EXACTLY_ONCE, min(timeout_s, transaction_timeout_s)),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": int(transaction_timeout_s * 1000),
        # The next transaction may begin before the last one's markers are written, and is then asked to come again:
        # with librdkafka's 100 ms a transaction with offsets took 103 ms here, with this 17 ms.
        "retry.backoff.ms": TRANSACTION_RETRY_MS,
        # When no broker answers for a while, librdkafka would forget them all and begin anew with the addresses it was
        # given; but it keeps the group's coordinator in mind, and waits for that forgotten one for ever (2.16).
        "metadata.recovery.strategy": "none",
    }


def consumer_settings(delivery: Delivery, group: str, start: str) -> dict[str, Any]:
    return {
        "group.id": group,
        "auto.offset.reset": start,
        "queued.max.messages.kbytes": PREFETCH_KIB_MAX,
        # librdkafka begins with one partition, and has one long poll open at a time: after every rebalance a busy
        # partition may wait behind an idle one for so long, once.
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "allow.auto.create.topics": True,  # Who comes before the first publisher waits for it, as with the Java client.
        "isolation.level": "read_committed",  # What was aborted is nobody's message, whatever else is promised.
        # We say which messages are done, librdkafka commits that in the background and on leaving.
        "enable.auto.commit": delivery is not Delivery.AT_MOST_ONCE,
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
    }
