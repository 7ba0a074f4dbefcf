"""Penstock: a message queue that speaks Kafka's wire protocol."""

__version__ = "0.1.0"
