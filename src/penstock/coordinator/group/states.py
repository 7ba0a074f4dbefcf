"""The states of a classic group, and every transition there is.

Rules of this file: a state's comment says how each request is answered in it and how it is left; `NEXT` lists the same
transitions, and `ClassicGroup.become` takes no other. A request that names a member is checked first, in every state:
an instance id that belongs to another member is FENCED_INSTANCE_ID, a member that is not there UNKNOWN_MEMBER_ID, and,
except in JoinGroup and LeaveGroup, another generation ILLEGAL_GENERATION.
"""

from enum import Enum


class GroupState(Enum):
    """Named as DescribeGroups and ListGroups show them."""

    # No members. Also a group that only commits offsets.
    #   JoinGroup     a new member is taken in; one with an id is unknown
    #   others        UNKNOWN_MEMBER_ID, as there is no member
    #   OffsetCommit  without generation: taken
    #   Leaves by     a first member => PREPARING_REBALANCE; deletion or expiry of its last offset => DEAD
    EMPTY = "Empty"

    # A rebalance collects its members.
    #   JoinGroup     parked until all members have joined, or the time is up
    #   SyncGroup     REBALANCE_IN_PROGRESS
    #   Heartbeat     REBALANCE_IN_PROGRESS, and the session goes on
    #   LeaveGroup    the member is removed; those who remain may now be complete
    #   OffsetCommit  taken from members of the generation that ends: they commit before they rejoin
    #   Leaves by     all have joined, or the time is up => COMPLETING_REBALANCE; nobody is left => EMPTY
    PREPARING_REBALANCE = "PreparingRebalance"

    # The members of the new generation are known, their assignment is not.
    #   JoinGroup     a member as it was: answered once more; a new or changed one: a new rebalance
    #   SyncGroup     parked until the leader's is there; that one carries the assignment
    #   Heartbeat     taken
    #   LeaveGroup    the member is removed, a new rebalance
    #   OffsetCommit  REBALANCE_IN_PROGRESS: the member cannot own anything yet
    #   Leaves by     the assignment is stored => STABLE; any change of members => PREPARING_REBALANCE
    COMPLETING_REBALANCE = "CompletingRebalance"

    # Every member has its assignment.
    #   JoinGroup     a follower as it was: answered at once; the leader, a new or a changed member: a rebalance.
    #                 A static member that restarted as it was takes its seat and its assignment, without a rebalance
    #   SyncGroup     the member's assignment
    #   Heartbeat     taken
    #   LeaveGroup    the member is removed, a rebalance
    #   OffsetCommit  taken from members
    #   Leaves by     any change of members, or the leader's wish => PREPARING_REBALANCE
    STABLE = "Stable"

    # Deleted, or this broker no longer coordinates it. Everything: COORDINATOR_NOT_AVAILABLE. Final.
    DEAD = "Dead"


NEXT: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
