"""The transactional ids of one `__transaction_state` partition.

Inputs: commands with a token and the time, and `apply` with every record appended. Outputs: a Decision each.
Invariants: what is known of an id is the last record of it, so that a crash between any two steps changes nothing.
While a transaction ends it is in `completing`; the shell sees to its markers, and says `complete` when all are written.
"""

from collections.abc import Callable, Iterator

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.txn.add_partitions import decide_add, verify
from penstock.coordinator.txn.commands import AddPartitions, EndTxn, InitProducerId
from penstock.coordinator.txn.decision import Decision, Now, Token, answered
from penstock.coordinator.txn.end_txn import decide_end
from penstock.coordinator.txn.init_producer_id import check_init, decide_init
from penstock.coordinator.txn.metadata import TransactionDeleted, TransactionMetadata, TxnRecord
from penstock.coordinator.txn.replies import PartitionsReply, ProducerReply
from penstock.coordinator.txn.states import TxnState
from penstock.coordinator.txn.txn_config import DEFAULT_TXN_CONFIG, TxnConfig
from penstock.coordinator.txn.views import TxnFilter

CLOCK_JUMP_MS = 3_600_000  # More than any clock correction, and far less than an expiration that anyone sets.


class TxnShard:
    next_deadline_ms = None  # Timeouts are looked for every now and then, as Kafka does.

    def __init__(self, config: TxnConfig = DEFAULT_TXN_CONFIG) -> None:
        self.config = config
        self.transactions: dict[str, TransactionMetadata] = {}
        self.completing: dict[str, TransactionMetadata] = {}  # Those whose markers are to be written.
        self._ending: list[TransactionMetadata] = []  # Of those, the ones that the shell does not know of yet.
        self.on_ending: Callable[[], None] = lambda: None  # The shell's: there are some.
        self._due_ms: dict[str, int] = {}  # When an open one times out, on the timer's clock: not moved by jumps.
        self._last_expiry: Now | None = None

    # Commands -----------------------------------------------------------------------------------------------------

    def init_producer_id(
        self, command: InitProducerId, new_producer_id: int | None, token: Token, now: Now
    ) -> Decision:
        code = check_init(command, self.config)
        if code is not ErrorCode.none:
            return answered(token, ProducerReply(error_code=code))
        found = self.transactions.get(command.transactional_id)
        try:
            changed, reply = decide_init(found, command, new_producer_id, now.wall_ms)
        except Refused as refused:
            return answered(token, ProducerReply(error_code=refused.code))
        if changed is not None and changed.state is TxnState.ONGOING:
            self._watch(changed, now)
        return answered(token, reply, *([changed] if changed is not None else []))

    def end(self, command: EndTxn, new_producer_id: int | None, token: Token, now: Now) -> Decision:
        found = self.transactions.get(command.transactional_id)
        try:
            changed, reply = decide_end(found, command, new_producer_id, now.wall_ms)
        except Refused as refused:
            return answered(token, ProducerReply(error_code=refused.code))
        return answered(token, reply, *([changed] if changed is not None else []))

    def add_partitions(self, command: AddPartitions, token: Token, now: Now) -> Decision:
        found = self.transactions.get(command.transactional_id)
        reply = PartitionsReply(codes=dict.fromkeys(command.partitions, ErrorCode.none))
        try:
            changed = decide_add(found, command, now.wall_ms)
        except Refused as refused:
            return answered(token, reply.failed(refused.code))
        if changed is None:
            return answered(token, reply)
        if found is None or found.state is not TxnState.ONGOING:
            self._watch(changed, now)
        return answered(token, reply, changed)

    def verify_partitions(self, command: AddPartitions, token: Token) -> Decision:
        found = self.transactions.get(command.transactional_id)
        try:
            return answered(token, PartitionsReply(codes=verify(found, command)))
        except Refused as refused:
            return answered(token, PartitionsReply(codes=dict.fromkeys(command.partitions, refused.code)))

    def complete(self, ending: TransactionMetadata, now: Now) -> Decision:
        """All markers of `ending` are written. Nothing, when it is no longer what is ending."""
        if self.completing.get(ending.transactional_id) is not ending:
            return Decision()
        return Decision(records=[ending.completed(now.wall_ms)])

    def take_ending(self) -> list[TransactionMetadata]:
        """Those that have begun to end since the last call."""
        ending, self._ending = self._ending, []
        return [record for record in ending if self.completing.get(record.transactional_id) is record]

    # Time ---------------------------------------------------------------------------------------------------------

    def _watch(self, opened: TransactionMetadata, now: Now, age_ms: int = 0) -> None:
        """See to its timeout. It is counted anew by a coordinator that takes over, as far as clocks agree."""
        if opened.is_two_phase:
            self._due_ms.pop(opened.transactional_id, None)
        else:
            left_ms = opened.timeout_ms - max(0, age_ms)
            self._due_ms[opened.transactional_id] = now.timer_ms + max(0, left_ms)

    def abort_timed_out(self, now: Now) -> Decision:
        """To be called every transaction.abort.timed.out.transaction.cleanup.interval.ms."""
        out = Decision()
        for transactional_id, due_ms in list(self._due_ms.items()):
            found = self.transactions.get(transactional_id)
            if found is None or found.state is not TxnState.ONGOING:
                del self._due_ms[transactional_id]
            elif due_ms < now.timer_ms:
                out.records.append(found.fenced(now.wall_ms))
        return out

    def expire(self, now: Now) -> Decision:
        """To be called every transaction.remove.expired.transaction.cleanup.interval.ms: ids that nobody uses go."""
        last, self._last_expiry = self._last_expiry, now
        if last is not None and now.wall_ms - last.wall_ms > now.timer_ms - last.timer_ms + CLOCK_JUMP_MS:
            return Decision()  # The clock was set forward. If it stays there, the next pass believes it.
        oldest_ms = now.wall_ms - self.config.id_expiration_ms
        return Decision(
            records=[
                TransactionDeleted(transactional_id=found.transactional_id)
                for found in self.transactions.values()
                if found.state.is_idle and found.last_update_ms <= oldest_ms
            ]
        )

    def on_tick(self, now: Now) -> Decision:
        raise AssertionError("there are no deadlines")

    # The log ------------------------------------------------------------------------------------------------------

    def apply(self, record: TxnRecord) -> None:
        """The record is in the log. In the order of the log, exactly once each."""
        transactional_id = record.transactional_id
        self.completing.pop(transactional_id, None)
        if isinstance(record, TransactionDeleted):
            self.transactions.pop(transactional_id, None)
            self._due_ms.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = record
        if record.state.is_completing:
            self.completing[transactional_id] = record
            self._ending.append(record)
            self.on_ending()
        if record.state is not TxnState.ONGOING:
            self._due_ms.pop(transactional_id, None)

    def on_loaded(self, now: Now) -> Decision:
        for found in self.transactions.values():
            if found.state is TxnState.ONGOING:
                self._watch(found, now, age_ms=now.wall_ms - found.start_ms)
        return Decision()

    def on_append_failed(self, decision: Decision, code: ErrorCode, now: Now) -> Decision:
        """Nothing of it was appended, nor applied: all is as it was before."""
        return Decision(replies_now=decision.replies_now + decision.failed(code))

    def unload(self, code: ErrorCode) -> Decision:
        """Another broker coordinates these ids now. Nobody waits here."""
        return Decision()

    # Looking ------------------------------------------------------------------------------------------------------

    def listed(self, wanted: TxnFilter, now_ms: int) -> Iterator[TransactionMetadata]:
        return (found for found in self.transactions.values() if wanted.passes(found, now_ms))
