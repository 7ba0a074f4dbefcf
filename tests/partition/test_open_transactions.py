"""Which transactions hold readers back, against a model that looks at the whole log."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.base.types import Offset
from penstock.partition.transactions import Transactions
from penstock.storage.txn_index import AbortedTxn

PRODUCERS = st.integers(1, 4)


class Log(RuleBasedStateMachine):
    """A log of ("data" or "marker", producer), and what follows from it by looking at all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = Transactions()
        self.log: list[tuple[str, int]] = []
        self.high_watermark = 0

    def transaction_of(self, producer: int) -> int | None:
        """Where its open transaction began."""
        first = None
        for offset, (kind, of) in enumerate(self.log):
            if of == producer:
                first = None if kind == "marker" else offset if first is None else first
        return first

    @property
    def unstable(self) -> int | None:
        """The first data whose marker is missing or not committed."""
        for offset, (kind, producer) in enumerate(self.log):
            if kind == "data":
                later = range(offset + 1, len(self.log))
                marker = next((at for at in later if self.log[at] == ("marker", producer)), None)
                if marker is None or marker >= self.high_watermark:
                    return offset
        return None

    @rule(producer=PRODUCERS)
    def write(self, producer: int) -> None:
        if self.transaction_of(producer) is None:
            self.transactions.begin(producer, Offset(len(self.log)))
        self.log.append(("data", producer))

    @rule(producer=PRODUCERS)
    def end(self, producer: int) -> None:
        offset, first = Offset(len(self.log)), self.transaction_of(producer)
        others = [
            begun for other in range(1, 5) if other != producer and (begun := self.transaction_of(other)) is not None
        ]
        stable = min(others, default=offset + 1)
        expected = None if first is None else AbortedTxn(producer, first, offset, stable)
        assert self.transactions.aborted(producer, offset) == expected
        self.transactions.end(producer, offset)
        self.log.append(("marker", producer))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, len(self.log)))
        self.transactions.on_high_watermark(Offset(self.high_watermark))

    @rule()
    def restart(self) -> None:
        """From a snapshot: those that have ended are not in it, those that are open are."""
        self.high_watermark = len(self.log)
        fresh = Transactions()
        opened = [(begun, producer) for producer in range(1, 5) if (begun := self.transaction_of(producer)) is not None]
        for begun, producer in sorted(opened):
            fresh.begin(producer, Offset(begun))
        self.transactions = fresh

    @invariant()
    def holds_back_what_is_undecided(self) -> None:
        found = self.transactions.first_unstable
        assert found == self.unstable
        assert len(self.transactions) == sum(self.transaction_of(producer) is not None for producer in range(1, 5))


TestLog = Log.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
