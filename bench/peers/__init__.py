"""Servers with other protocols than Kafka's: how each is had, started and stopped."""
