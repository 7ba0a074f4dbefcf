"""TxnOffsetCommit: store how far a group has read as a part of a transaction; it counts when that is committed.

v2 adds leader epochs, v3 member and generation (KIP-447), v4 TRANSACTION_ABORTABLE, v5 adds the group's partition to
the transaction by itself (KIP-890). Before, AddOffsetsToTxn has done that, and it is only looked up. Answered when the
offsets are durable, so that the transaction cannot be committed without them.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.decision import APPEND_ERRORS, TransactionalProducer
from penstock.coordinator.group.commands import CommitTxnOffsets, TopicCommit
from penstock.coordinator.group.replies import CommitReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.offset_commits import all_refused, commit_of, fill, refused
from penstock.wire.codec import Struct

LOAD_IN_PROGRESS_VERSION = 2  # Clients of older versions end at it.
ABORTABLE_VERSION = 4
ADDING_VERSION = 5

# What makes every client send it again, here: the others look for another coordinator first, or give up.
_TRY_AGAIN = frozenset({ErrorCode.network_exception, ErrorCode.concurrent_transactions})


@handler(ApiKey.TXN_OFFSET_COMMIT, versions=range(6))
async def txn_offset_commit(context: Context, header: RequestHeader, request: Struct) -> Struct:
    known, answers = [], []
    for topic in request.topics:
        image = context.metadata.image.topics.get(topic.name)
        answer = Struct(name=topic.name, partitions=[])
        answers.append(answer)
        if image is None:
            answer.partitions = all_refused(topic, ErrorCode.unknown_topic_or_partition)
        else:
            known.append(commit_of(image, topic, answer))
    topics = tuple(topic for topic in known if topic.partitions)
    if topics:
        try:
            reply = await _commit(context, header.version, request, topics)
            if _is_unverified(reply):
                reply = await _commit(context, header.version, request, topics)
        except Refused as error:
            reply = refused(topics, _told(error.code, header.version))
        fill(answers, reply)
    return Struct(topics=answers)


async def _commit(context: Context, version: int, request: Struct, topics: tuple[TopicCommit, ...]) -> CommitReply:
    group_id = request.group_id
    if request.producer_id < 0 or request.producer_epoch < 0:
        raise Refused(ErrorCode.invalid_producer_id_mapping)
    partition = context.groups.led_partition(group_id)
    guard = await context.txn_verification.verify(
        partition,
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        is_added=version >= ADDING_VERSION,
    )
    # The group may have changed since: it is asked last, in the step in which the offsets are written.
    command = CommitTxnOffsets(
        group_id=group_id,
        member_id=request.member_id,
        generation_id=request.generation_id,
        instance_id=request.group_instance_id,
        topics=topics,
        producer=TransactionalProducer(request.producer_id, request.producer_epoch, guard),
    )
    reply = await context.groups.call(group_id, lambda shard, token, now: shard.commit_txn_offsets(command, token, now))
    assert isinstance(reply, CommitReply)
    return reply


def _is_unverified(reply: CommitReply) -> bool:
    """Whether what the coordinator of the transaction has said got lost before the offsets were written.

    The partition forgets it with a new start, or when too many ask. Clients do not try again, so it is asked once more.
    """
    return any(code is ErrorCode.invalid_txn_state for topic in reply.topics for _, code in topic.partitions)


def _told(code: ErrorCode, version: int) -> ErrorCode:
    """What the client of a group coordinator can make sense of."""
    if code in _TRY_AGAIN:
        code = ErrorCode.coordinator_load_in_progress
    code = APPEND_ERRORS.get(code, code)
    if code is ErrorCode.coordinator_load_in_progress and version < LOAD_IN_PROGRESS_VERSION:
        return ErrorCode.coordinator_not_available
    if code is ErrorCode.transaction_abortable and version < ABORTABLE_VERSION:
        return ErrorCode.invalid_txn_state
    return code
