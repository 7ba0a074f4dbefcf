"""Changes to the cluster: one decision at a time, against the current image, committed with compare-and-set.

A thin shell around the plans. A method returns when this broker's image has followed (see metadata.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID, uuid4

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.logging import get_logger
from penstock.cluster import records
from penstock.cluster.config_plan import AlterConfig, ConfigResult, plan_alter_configs
from penstock.cluster.image import ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.cluster.plan import Plan
from penstock.cluster.quota_plan import AlterQuota, QuotaResult, plan_alter_quotas
from penstock.cluster.store.base import Check, CommitTooLarge, Conflict, MetadataStore, StoreUnavailable
from penstock.cluster.topic_plan import (
    DeleteTopic,
    NewPartitions,
    NewTopic,
    TopicResult,
    plan_create_partitions,
    plan_create_topics,
    plan_delete_topics,
)

log = get_logger(__name__)

R = TypeVar("R", TopicResult, ConfigResult, QuotaResult)

# A conflict means that somebody else wrote between our look and our write. With one controller that is a leader's
# AlterPartition or a new controller; several in a row are not bad luck but the latter.
ATTEMPTS_MAX = 5


class Controller:
    def __init__(
        self,
        *,
        store: MetadataStore,
        metadata: Metadata,
        config: BrokerConfig,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._config = config
        self._new_uuid = new_uuid
        self._lock = asyncio.Lock()  # Decisions take turns: each sees what the one before it has changed.

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicResult]:
        return await self._carry_out(
            lambda image: plan_create_topics(image, topics, self._config, self._new_uuid), validate_only
        )

    async def delete_topics(self, topics: Sequence[DeleteTopic]) -> list[TopicResult]:
        return await self._carry_out(lambda image: plan_delete_topics(image, topics))

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicResult]:
        return await self._carry_out(lambda image: plan_create_partitions(image, topics), validate_only)

    async def alter_configs(
        self, alterations: Sequence[AlterConfig], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        return await self._carry_out(lambda image: plan_alter_configs(image, alterations, self._config), validate_only)

    async def alter_quotas(
        self, alterations: Sequence[AlterQuota], *, validate_only: bool = False
    ) -> list[QuotaResult]:
        return await self._carry_out(lambda image: plan_alter_quotas(image, alterations), validate_only)

    async def _carry_out(self, decide: Callable[[ClusterImage], Plan[R]], validate_only: bool = False) -> list[R]:
        async with self._lock:
            for _ in range(ATTEMPTS_MAX):
                image = self._metadata.image
                plan: Plan[R] = decide(image)
                if image.controller_id != self._config.node_id:
                    return _failed(plan, ErrorCode.not_controller, "This broker is not the controller")
                if validate_only or not plan.writes:
                    return plan.results
                epoch_check = Check(records.CONTROLLER_EPOCH, image.controller_epoch_version)
                try:
                    revision = await self._store.commit([epoch_check, *plan.checks], plan.writes)
                except Conflict as conflict:
                    await self._metadata.applied(conflict.revision)
                except CommitTooLarge as error:
                    log.warning("change refused by the metadata store", reason=error)
                    return _failed(plan, ErrorCode.policy_violation, f"Too much for one change: {error}")
                except StoreUnavailable as error:
                    log.error("metadata store cannot be written", reason=error)
                    return _failed(plan, ErrorCode.kafka_storage_error, "The metadata store cannot be written")
                else:
                    await self._metadata.applied(revision)
                    return plan.results
            return _failed(
                decide(self._metadata.image), ErrorCode.not_controller, "Somebody else keeps changing the cluster"
            )


def _failed(plan: Plan[R], code: ErrorCode, message: str) -> list[R]:
    """The plan's answers with those that would have been a success replaced: nothing was written."""
    return [
        result._replace(code=code, message=message) if result.code is ErrorCode.none else result
        for result in plan.results
    ]
