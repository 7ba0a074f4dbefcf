"""What the operator has decided about transactions."""

from typing import NamedTuple


class TxnConfig(NamedTuple):
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    is_two_phase_allowed: bool = True


DEFAULT_TXN_CONFIG = TxnConfig()
