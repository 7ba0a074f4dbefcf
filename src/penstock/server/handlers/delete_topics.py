"""DeleteTopics: remove topics with all their records. v6 can name them by id (KIP-516); v5 adds error messages.

The topic is gone from the metadata when the reply leaves; its files follow after file.delete.delay.ms.
"""

from penstock.base.errors import ErrorCode
from penstock.cluster.topic_plan import DeleteTopic, TopicResult
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import ZERO_UUID, Struct

BY_ID_VERSION = 6
DISABLED_CODE_VERSION = 3  # Older clients do not know TOPIC_DELETION_DISABLED.


@handler(ApiKey.DELETE_TOPICS, versions=range(1, 7), is_at_controller=True)
async def delete_topics(context: Context, header: RequestHeader, request: Struct) -> Struct:
    if header.version >= BY_ID_VERSION:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, ZERO_UUID) for name in request.topic_names]
    if not context.metadata.image.broker_config(context.config).delete_topic_enable:
        known = header.version >= DISABLED_CODE_VERSION
        code = ErrorCode.topic_deletion_disabled if known else ErrorCode.invalid_request
        return Struct(responses=[_response(name, topic_id, code, "Deletion is disabled") for name, topic_id in asked])
    # A topic is named in one of two ways; in both or in none it is not named at all.
    well_named = [(name is None) != (topic_id == ZERO_UUID) for name, topic_id in asked]
    commands = [
        DeleteTopic(name, None if topic_id == ZERO_UUID else topic_id)
        for (name, topic_id), ok in zip(asked, well_named, strict=True)
        if ok
    ]
    results = iter(await context.controller.delete_topics(commands))
    return Struct(
        responses=[
            _result(next(results))
            if ok
            else _response(name, topic_id, ErrorCode.invalid_request, "Either a name or an id is needed")
            for (name, topic_id), ok in zip(asked, well_named, strict=True)
        ]
    )


def _result(result: TopicResult) -> Struct:
    return _response(result.name, result.topic_id or ZERO_UUID, result.code, result.message)


def _response(name: str | None, topic_id: object, code: ErrorCode, message: str | None) -> Struct:
    return Struct(name=name, topic_id=topic_id, error_code=code, error_message=message)
