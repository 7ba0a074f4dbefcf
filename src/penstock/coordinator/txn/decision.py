"""What a command to the transaction coordinator comes to; coordinator/decision.py says what the shell does with it."""

from dataclasses import dataclass

from penstock.coordinator import decision
from penstock.coordinator.decision import Now, Reply, Response, Token
from penstock.coordinator.txn.metadata import TxnRecord

__all__ = ["Decision", "Now", "ProducerIdNeeded", "Reply", "Response", "Token", "answered"]


class ProducerIdNeeded(Exception):
    """The command takes a producer id that nobody has had: to be asked again with one. Nothing was changed."""


@dataclass(slots=True)
class Decision(decision.Decision[TxnRecord]):
    pass


def answered(token: Token, response: Response, *records: TxnRecord) -> Decision:
    """A reply, which leaves when all that it may be based on is committed, be it a refusal or not.

    A producer that hears PRODUCER_FENCED gives up: it must not be told of an epoch that may be lost yet.
    """
    return Decision(records=list(records), replies_on_commit=[Reply(token, response)])
