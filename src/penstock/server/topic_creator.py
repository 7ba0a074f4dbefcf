"""Topics that a broker needs itself: those that clients only mention, and those of the coordinators."""

import asyncio
from collections.abc import Sequence

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.logging import get_logger
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import Metadata
from penstock.cluster.store.base import StoreUnavailable
from penstock.cluster.topic_plan import NewTopic, TopicResult
from penstock.partition.peers import PeerLost
from penstock.server.api import ApiKey
from penstock.server.peers import Peers
from penstock.wire.codec import Struct

log = get_logger(__name__)

CREATE_TOPICS_VERSION = 7
CREATE_S_MAX = 15.0  # For the controller's answer. Clients wait 30 s for theirs, and ask again.
FOLLOW_S_MAX = 5.0  # For our image to get what the controller's has.


class TopicCreator:
    def __init__(self, *, config: BrokerConfig, metadata: Metadata, controller: Controller, peers: Peers) -> None:
        self._config = config
        self._metadata = metadata
        self._controller = controller
        self._peers = peers

    async def create(self, topics: Sequence[NewTopic]) -> list[TopicResult]:
        """Have the topics made, wherever the controller is; this broker's image has those that are there."""
        if self._metadata.image.controller_id == self._config.node_id:
            return await self._controller.create_topics(topics)
        try:
            return await self._ask_controller(topics)
        except (PeerLost, StoreUnavailable, TimeoutError) as error:
            log.debug("topics could not be made", count=len(topics), reason=error)
            message = "The controller cannot be reached"
            return [TopicResult(topic.name, ErrorCode.not_controller, message) for topic in topics]

    async def _ask_controller(self, topics: Sequence[NewTopic]) -> list[TopicResult]:
        request = Struct(
            topics=[_topic(topic) for topic in topics], timeout_ms=int(CREATE_S_MAX * 1000), validate_only=False
        )
        answer = await self._peers.ask_controller(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request, CREATE_S_MAX)
        results = [TopicResult(item.name, ErrorCode(item.error_code), item.error_message) for item in answer.topics]
        there = {item.name for item in results if item.code in (ErrorCode.none, ErrorCode.topic_already_exists)}
        async with asyncio.timeout(FOLLOW_S_MAX):
            await self._metadata.until(lambda image: there <= image.topics.keys())
        return results


def _topic(topic: NewTopic) -> Struct:
    return Struct(
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        assignments=[Struct(partition_index=number, broker_ids=replicas) for number, replicas in topic.assignment],
        configs=[Struct(name=name, value=value) for name, value in topic.config.items()],
    )
