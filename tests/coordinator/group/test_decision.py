"""What those hear who wait for a commit that does not come."""

from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.decision import Decision, Reply
from penstock.coordinator.group.replies import (
    DeleteOffsetsReply,
    FetchReply,
    HeartbeatReply,
    JoinReply,
    LeaveReply,
    SyncReply,
)


@pytest.mark.parametrize(
    "response",
    [
        JoinReply(member_id="m", generation_id=4),
        SyncReply(assignment=b"a"),
        HeartbeatReply(),
        LeaveReply(),
        FetchReply(),
        DeleteOffsetsReply(),
    ],
)
def test_every_reply_can_become_a_refusal(response: Any) -> None:
    decision = Decision(replies_on_commit=[Reply("token", response)])
    refused = type(response)(error_code=ErrorCode.not_coordinator)
    assert decision.failed(ErrorCode.not_leader_or_follower) == [Reply("token", refused)]


def test_a_code_that_clients_of_a_coordinator_know_is_told_as_it_is() -> None:
    decision = Decision(replies_on_commit=[Reply("token", HeartbeatReply())])
    (reply,) = decision.failed(ErrorCode.coordinator_load_in_progress)
    assert reply.response == HeartbeatReply(error_code=ErrorCode.coordinator_load_in_progress)
