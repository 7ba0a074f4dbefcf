"""The Python client: connect, publish, subscribe, process. A thin layer over librdkafka, for any Kafka broker.

It meets the broker on the wire only and imports nothing of it. See docs/python-client.md.
"""

from penstock.client.connection import Connection, connect
from penstock.client.connection_async import AsyncConnection, connect_async
from penstock.client.delivery import Delivery
from penstock.client.errors import (
    ClientError,
    Closed,
    DeliveryFailed,
    Fenced,
    NotServed,
    SubscriptionFailed,
    TransactionAborted,
    TransactionFailed,
    Unreachable,
)
from penstock.client.message import Message, Receipt
from penstock.client.process import Step
from penstock.client.subscription import Subscription
from penstock.client.subscription_async import AsyncSubscription
from penstock.client.transaction import Transaction
from penstock.client.transaction_async import AsyncStep, AsyncTransaction

__all__ = [
    "AsyncConnection",
    "AsyncStep",
    "AsyncSubscription",
    "AsyncTransaction",
    "ClientError",
    "Closed",
    "Connection",
    "Delivery",
    "DeliveryFailed",
    "Fenced",
    "Message",
    "NotServed",
    "Receipt",
    "Step",
    "Subscription",
    "SubscriptionFailed",
    "Transaction",
    "TransactionAborted",
    "TransactionFailed",
    "Unreachable",
    "connect",
    "connect_async",
]
