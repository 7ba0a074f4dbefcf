"""The leader epochs of a partition's log, and the side file that keeps them: records of an epoch come after it."""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.types import LeaderEpoch, Offset
from penstock.partition.leader_epochs import LeaderEpochs
from penstock.storage.checkpoint import encode_lines, read_epochs
from penstock.storage.format import LEADER_EPOCH_CHECKPOINT
from penstock.storage.fs import FileSystem
from penstock.storage.log import Log
from penstock.storage.scan import BadBatch, scan_headers

log = get_logger(__name__)


class EpochCheckpoint:
    def __init__(self, *, fs: FileSystem, partition_log: Log) -> None:
        self._fs = fs
        self._log = partition_log
        self.epochs = LeaderEpochs()
        self._is_stored = True  # False: the file has some that are forgotten. It goes before any append.

    def load(self) -> None:
        """Read them; from the batches themselves where the file is missing, damaged or empty."""
        entries = read_epochs(self._fs, f"{self._log.directory}/{LEADER_EPOCH_CHECKPOINT}")
        self.epochs = LeaderEpochs(entries or self._entries_of_batches())
        self.forget_empty()

    def _entries_of_batches(self) -> list[tuple[LeaderEpoch, Offset]]:
        epochs = LeaderEpochs()
        for segment in self._log.segments:
            try:
                for _, header in scan_headers(segment.file.read, 0, segment.size, segment.base_offset):
                    epochs.assign(LeaderEpoch(header.partition_leader_epoch), Offset(header.base_offset))
            except BadBatch as error:
                # Damage below the recovery point, as when producers are read.
                log.error("leader epochs behind damage are not known", segment=segment.path(), error=error)
        return epochs.entries

    def goes_on(self, epoch: LeaderEpoch) -> bool:
        """Whether a record of `epoch` can be appended without `begin`."""
        return self._is_stored and epoch == self.epochs.latest

    def begin(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Note that records of `epoch` begin at `start`; the next flush makes it durable, together with the first."""
        before = list(self.epochs.entries)
        if self.epochs.assign(epoch, start) or not self._is_stored:
            try:
                self._store()
            except OSError as error:
                self.epochs.entries = before
                raise Refused(ErrorCode.kafka_storage_error, str(error)) from error

    def forget_empty(self) -> None:
        """Forget those that begin where the log ends: none of their records is here."""
        if self.epochs.truncate_end(self._log.log_end):
            self._is_stored = False

    def on_cut(self) -> None:
        """The log has lost its end, perhaps all. OSError: the file may tell of what is gone."""
        self.forget_empty()
        if self.epochs.entries and self._log.segments[0].base_offset == self._log.log_end:
            # Nothing is left. Where older epochs end a leader's log may no longer reach, and nobody is to go back to.
            self.epochs.entries, self._is_stored = [], False

    def store(self) -> None:
        """Write the file if it has some that are forgotten."""
        if not self._is_stored:
            self._store()

    def _store(self) -> None:
        entries = (f"{epoch} {start}" for epoch, start in self.epochs.entries)
        self._log.put_side_file(LEADER_EPOCH_CHECKPOINT, encode_lines(entries))
        self._is_stored = True
