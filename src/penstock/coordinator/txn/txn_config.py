"""What the operator has decided about transactions."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TxnConfig:
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    is_two_phase_allowed: bool = True


DEFAULT_TXN_CONFIG = TxnConfig()
