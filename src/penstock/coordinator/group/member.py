"""One member of a classic group: what it told us, what it was assigned, and which of its requests is parked."""

from dataclasses import dataclass

from penstock.coordinator.group.commands import JoinGroup, Protocol
from penstock.coordinator.group.decision import Token
from penstock.coordinator.group.records import MemberMetadata


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""  # Of the last generation that was stored.
    charged_bytes: int = 0  # What the MemberBudget counts for it.

    join_token: Token | None = None  # A parked JoinGroup: the member has rejoined.
    sync_token: Token | None = None  # A parked SyncGroup. Never both.
    is_new: bool = False  # It does not know its id yet, so it can neither heartbeat nor come back for a lost answer.

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_excused(self) -> bool:
        """Whether silence is fine: it waits for us. A new member's request may have lost its client, so it is not."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """What it said for this protocol."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def stored(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


def member_of(member_id: str, command: JoinGroup) -> Member:
    return Member(
        member_id=member_id,
        instance_id=command.instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms(command),
        session_timeout_ms=command.session_timeout_ms,
        protocols=command.protocols,
    )


def restored_member(stored: MemberMetadata, protocol: str | None) -> Member:
    """As after a restart: of its protocols, only the one in use was stored."""
    return Member(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        session_timeout_ms=stored.session_timeout_ms,
        protocols=(Protocol(protocol or "", stored.subscription),),
        assignment=stored.assignment,
    )


def rebalance_timeout_ms(command: JoinGroup) -> int:
    return command.session_timeout_ms if command.rebalance_timeout_ms < 0 else command.rebalance_timeout_ms
