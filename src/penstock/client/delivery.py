"""The three promises of delivery, and what each asks of librdkafka."""

from enum import StrEnum
from typing import Any

from penstock.client.errors import ClientError, NotServed

QUEUE_KIB_MAX = 64 << 10  # Messages that wait to be sent; with it full, publishing waits. Kafka's default is 1 GiB.
PREFETCH_KIB_MAX = 16 << 10  # Messages received ahead, per subscription.
COMMIT_INTERVAL_MS = 1000  # What a consumer that crashes gets again is at most a second's work.

FETCH_WAIT_MS = 100  # Kafka's default is 500. An idle subscription then asks ten times a second.


class Delivery(StrEnum):
    """What happens to a message when something breaks."""

    AT_MOST_ONCE = "at-most-once"  # Lost, perhaps; twice, never.
    AT_LEAST_ONCE = "at-least-once"  # Twice, perhaps; lost, never.
    EXACTLY_ONCE = "exactly-once"


def served(delivery: str) -> Delivery:
    """The promise by its name. NotServed for exactly-once, ClientError for a name that is none."""
    try:
        promise = Delivery(delivery)
    except ValueError:
        names = ", ".join(f'"{each}"' for each in Delivery)
        raise ClientError(f"There is no delivery {delivery!r}.", f"Choose one of {names}.") from None
    if promise is Delivery.EXACTLY_ONCE:
        raise NotServed(
            'delivery="exactly-once" needs transactions, which Penstock does not serve yet.',
            'Use "at-least-once", and make handling a message twice harmless: for example, remember its '
            "(topic, partition, offset) together with the result.",
        )
    return promise


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


def consumer_settings(delivery: Delivery, group: str, start: str) -> dict[str, Any]:
    return {
        "group.id": group,
        "auto.offset.reset": start,
        "queued.max.messages.kbytes": PREFETCH_KIB_MAX,
        # librdkafka begins with one partition, and has one long poll open at a time: after every rebalance a busy
        # partition may wait behind an idle one for so long, once.
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "allow.auto.create.topics": True,  # Who comes before the first publisher waits for it, as with the Java client.
        # At least once: we say which messages are done, librdkafka commits that in the background and on leaving.
        "enable.auto.commit": delivery is Delivery.AT_LEAST_ONCE,
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
    }
