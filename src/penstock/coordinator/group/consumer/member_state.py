"""How far a member is on its way to its target assignment, in the numbers of Kafka's records."""

from enum import IntEnum


class MemberState(IntEnum):
    # It has what its epoch's target gives it. Leaves by: a newer target.
    STABLE = 0
    # It was told to give partitions up and has not confirmed. It keeps its epoch, and nobody gets them meanwhile.
    # Leaves by: a heartbeat whose owned partitions are without them; the rebalance timeout, which removes it.
    UNREVOKED_PARTITIONS = 1
    # It has its epoch's target but for partitions that others still hold. Leaves by: those giving them up.
    UNRELEASED_PARTITIONS = 2
