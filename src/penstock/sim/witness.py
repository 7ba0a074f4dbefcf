"""Sees what no client can: on which disks a record is, and whose lease is over, at the moment a client is told."""

from collections.abc import Iterator, Mapping, Sequence

from penstock.base.types import NodeId
from penstock.cluster import records
from penstock.cluster.store.base import Entry
from penstock.sim.disk import SimDisk
from penstock.sim.ensemble import Ensemble, done_at_once
from penstock.sim.history import Log, Send
from penstock.sim.machine import Machine
from penstock.sim.names import parent_of
from penstock.storage.journal_format import read_journal


class Witness:
    def __init__(self, *, machines: Mapping[int, Machine], ensemble: Ensemble, isr_min: int) -> None:
        self.complaints: list[str] = []
        self._machines = machines
        self._ensemble = ensemble
        self._isr_min = isr_min
        self._shown: dict[Log, int] = {}  # The first offset that nobody has been shown yet.

    def registration_of(self, broker: int) -> tuple[int, Entry | None]:
        """How the store has the broker now, and at which revision."""
        store = self._ensemble.memory
        revision = done_at_once(store.list("/none")).revision
        return revision, done_at_once(store.get(records.broker_key(NodeId(broker))))

    def on_acked(self, send: Send, broker: int, registration: tuple[int, Entry | None]) -> None:
        """The broker has acknowledged what was sent when it was registered so."""
        for value in send.values:
            self._check_copies(send.log, value, "acked")
        revision, before = registration
        _, after = self.registration_of(broker)
        if before is None and (after is None or after.created <= revision):
            what = f"{send.values[0][:40]!r} in {send.log.partition}"
            self.complaints.append(f"broker {broker} acked {what} without a lease")

    def on_shown(self, log: Log, shown: Sequence[tuple[int, bytes]]) -> None:
        for offset, value in shown:
            if offset >= self._shown.get(log, 0):
                self._shown[log] = offset + 1
                self._check_copies(log, value, "shown")

    def _check_copies(self, log: Log, value: bytes, verb: str) -> None:
        """What has been promised or shown is on the disks of as many replicas as the topic asks for."""
        directory = f"data/{log.partition}"
        copies = [
            machine.name
            for machine in self._machines.values()
            if any(value in content for content in _durable_records(machine.disk, directory))
        ]
        if len(copies) < self._isr_min:
            self.complaints.append(f"{verb} with too few copies: {value[:40]!r} of {log.partition} is on {copies}")


def _durable_records(disk: SimDisk, directory: str) -> Iterator[bytes]:
    """What a power cut would leave of the log in this directory, in its own files or in the broker's journal."""
    yield from disk.durable_files(directory)
    for content in disk.durable_files(parent_of(directory)):
        for entry in read_journal(content):  # Of no other file there is one.
            yield from (bytes(piece.batches) for piece in entry.pieces)
