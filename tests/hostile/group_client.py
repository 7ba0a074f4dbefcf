"""The requests of a group's member, one function each, with any field as wrong as a test likes."""

import time
from typing import Any

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

from .client import Client

SESSION_MS = 60_000  # Nobody is to be forgotten while a test thinks.
LOADING = {ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
LOAD_S_MAX = 60
UNTIL_JOINED_S = 10


def find_coordinator(client: Client, group: str) -> int:
    """The error code; waits while the topic behind groups is being made and loaded."""
    deadline = time.monotonic() + LOAD_S_MAX
    while True:
        answer = client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
        code = int(answer.coordinators[0].error_code)
        if code == 0 and heartbeat(client, group, "", 0) not in LOADING:
            return 0
        assert time.monotonic() < deadline, f"no coordinator within {LOAD_S_MAX} s, last code {code}"
        time.sleep(0.05)


def join_fields(
    group: str,
    member_id: str = "",
    *,
    instance_id: str | None = None,
    session_ms: int = SESSION_MS,
    metadata: bytes = b"",
    protocols: int = 1,
) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": session_ms,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": "hostile",
        "protocols": [Struct(name=f"p{number}", metadata=metadata) for number in range(protocols)],
        "reason": None,
    }


def join(client: Client, group: str, member_id: str = "", *, version: int = 9, **fields: Any) -> Any:
    """The reply; a new dynamic member comes back with the id that it was given, as clients do."""
    reply = client.ask(ApiKey.JOIN_GROUP, version, **join_fields(group, member_id, **fields))
    if reply.error_code == ErrorCode.member_id_required:
        return join(client, group, reply.member_id, version=version, **fields)
    return reply


def sync(client: Client, group: str, joined: Any, *, assignment: bytes = b"all", instance_id: str | None = None) -> Any:
    return client.ask(
        ApiKey.SYNC_GROUP,
        5,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=instance_id,
        protocol_type=None,
        protocol_name=None,
        assignments=[Struct(member_id=joined.member_id, assignment=assignment)],
    )


def heartbeat(client: Client, group: str, member_id: str, generation: int, instance_id: str | None = None) -> int:
    answer = client.ask(
        ApiKey.HEARTBEAT,
        4,
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
    )
    return int(answer.error_code)


def leave(client: Client, group: str, *members: tuple[str, str | None]) -> list[int]:
    """The error code of each member."""
    answer = client.ask(
        ApiKey.LEAVE_GROUP,
        5,
        group_id=group,
        members=[Struct(member_id=name, group_instance_id=instance, reason=None) for name, instance in members],
    )
    assert answer.error_code == 0
    return [int(member.error_code) for member in answer.members]


def commit(
    client: Client,
    group: str,
    topic: str,
    *,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    offset: int = 1,
    metadata: str | None = None,
    partitions: int = 1,
    version: int = 8,
) -> list[int]:
    """The error code of each partition."""
    items = [
        Struct(partition_index=number, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata)
        for number in range(partitions)
    ]
    answer = client.ask(
        ApiKey.OFFSET_COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[Struct(name=topic, partitions=items)],
    )
    return [int(item.error_code) for item in answer.topics[0].partitions]


def committed(client: Client, group: str, topic: str, partitions: int = 1) -> list[int]:
    """The committed offsets, -1 where there is none."""
    wanted = Struct(name=topic, partition_indexes=list(range(partitions)))
    answer = client.ask(ApiKey.OFFSET_FETCH, 7, group_id=group, topics=[wanted], require_stable=True)
    assert answer.error_code == 0
    return [int(item.committed_offset) for item in answer.topics[0].partitions]
