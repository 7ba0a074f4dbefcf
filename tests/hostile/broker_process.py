"""The broker under attack: a process of our own, whose memory and stderr are looked at."""

from pathlib import Path

import broker_process
from ports import HOST

__all__ = ["HOST", "BrokerProcess"]


class BrokerProcess(broker_process.BrokerProcess):
    def __init__(self, directory: Path, **properties: str) -> None:
        """`properties` have Kafka's keys, with underscores for dots."""
        super().__init__(directory, config={name.replace("_", "."): value for name, value in properties.items()})

    @property
    def is_alive(self) -> bool:
        return self.is_running()
