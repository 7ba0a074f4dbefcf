"""What can go wrong, in words: what happened, why, and what to do."""

from confluent_kafka import KafkaError

_HINTS = {
    "UNKNOWN_TOPIC_OR_PART": "Create it with: penstock topics create TOPIC",
    "_UNKNOWN_TOPIC": "Create it with: penstock topics create TOPIC",
    "_UNKNOWN_PARTITION": "See how many partitions it has with: penstock topics describe TOPIC",
    "MSG_SIZE_TOO_LARGE": "Send less at once, or raise the topic's max.message.bytes and message.max.bytes here.",
    "TOPIC_EXCEPTION": "Names have letters, digits, '.', '_' and '-', at most 249 of them.",
    "TOPIC_AUTHORIZATION_FAILED": "Ask the cluster's owner for access to the topic.",
    "GROUP_AUTHORIZATION_FAILED": "Ask the cluster's owner for access to the group.",
    "_MSG_TIMED_OUT": "See that the broker runs and can be reached; the message may or may not have arrived.",
    "_PURGE_QUEUE": "Close the connection in order, so that what was published can leave.",
    "_FATAL": "Close the connection and open a new one.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Ask the cluster's owner for access to the transactional id.",
    "INVALID_TRANSACTION_TIMEOUT": "Ask for less than the broker's transaction.max.timeout.ms.",
}


class ClientError(Exception):
    """Anything that this client reports. `code` is Kafka's name for the error, where there is one."""

    def __init__(self, what: str, hint: str, code: str | None = None) -> None:
        super().__init__(f"{what} {hint}" if hint else what)
        self.code = code


class Unreachable(ClientError):
    """No broker takes connections at the given addresses."""


class DeliveryFailed(ClientError):
    """A message was not acknowledged."""


class TransactionFailed(ClientError):
    """A transaction did not end as it should; this class itself: nobody knows whether it was committed."""


class TransactionAborted(TransactionFailed):
    """Nothing of the transaction will be seen by anybody. It can be done again."""


class Fenced(TransactionFailed):
    """The broker has aborted the transaction, and takes no more from this process under its transactional id."""


class SubscriptionFailed(ClientError):
    """Messages cannot be received, or what was received cannot be committed."""


class NotServed(ClientError):
    """The client or the broker does not do this, or not yet."""


class Closed(ClientError):
    """The connection or subscription was used after it was closed."""


def why(error: KafkaError) -> str:
    """Kafka's reason as a clause: no prefix, no full stop."""
    return error.str().removeprefix("Broker: ").removeprefix("Local: ").rstrip(".")


def hint_for(error: KafkaError, topic: str) -> str:
    """What to do about it; empty when we know nothing better than the reason."""
    return _HINTS.get(error.name(), "").replace("TOPIC", topic)
