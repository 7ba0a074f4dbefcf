"""What a command to the group coordinator comes to; coordinator/decision.py says what the shell does with it."""

from dataclasses import dataclass

from penstock.coordinator import decision
from penstock.coordinator.decision import APPEND_ERRORS, Now, Reply, Response, Token
from penstock.coordinator.group.records import GroupRecord

__all__ = ["APPEND_ERRORS", "Decision", "Now", "Reply", "Response", "Token", "replied"]


@dataclass(slots=True)
class Decision(decision.Decision[GroupRecord]):
    pass


def replied(token: Token, response: Response) -> Decision:
    """A decision that is a reply and nothing else."""
    return Decision(replies_now=[Reply(token, response)])
