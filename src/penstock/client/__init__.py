"""The Python client: connect, publish, subscribe. A thin layer over librdkafka, for any Kafka broker.

It meets the broker on the wire only and imports nothing of it. See docs/python-client.md.
"""

from penstock.client.connection import Connection, connect
from penstock.client.connection_async import AsyncConnection, connect_async
from penstock.client.delivery import Delivery
from penstock.client.errors import ClientError, Closed, DeliveryFailed, NotServed, SubscriptionFailed, Unreachable
from penstock.client.message import Message, Receipt
from penstock.client.subscription import Subscription
from penstock.client.subscription_async import AsyncSubscription

__all__ = [
    "AsyncConnection",
    "AsyncSubscription",
    "ClientError",
    "Closed",
    "Connection",
    "Delivery",
    "DeliveryFailed",
    "Message",
    "NotServed",
    "Receipt",
    "Subscription",
    "SubscriptionFailed",
    "Unreachable",
    "connect",
    "connect_async",
]
