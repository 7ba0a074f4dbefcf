"""Changes to the cluster: one decision at a time, against the current image, committed with compare-and-set.

A thin shell around the plans. A method returns when this broker's image has followed (see metadata.py). While this
broker is the controller, a task of it keeps partitions led and in order (leader_plan.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID, uuid4

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.logging import get_logger
from penstock.base.types import NodeId, TopicPartition
from penstock.cluster import records
from penstock.cluster.alter_partition_plan import AlterPartition, AlterPartitionResult, plan_alter_partitions
from penstock.cluster.config_plan import AlterConfig, ConfigResult, plan_alter_configs
from penstock.cluster.election_plan import ElectionResult, ElectionType, needing_election, plan_elections
from penstock.cluster.image import EMPTY_IMAGE, ClusterImage
from penstock.cluster.leader_plan import Moved, due_partitions, may_be_due, plan_partitions, plan_tidying
from penstock.cluster.metadata import Metadata
from penstock.cluster.plan import WRITES_AT_ONCE_MAX, Plan, in_commits
from penstock.cluster.quota_plan import AlterQuota, QuotaResult, plan_alter_quotas
from penstock.cluster.reassignment_plan import Reassign, ReassignResult, plan_reassign
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

R = TypeVar("R", TopicResult, ConfigResult, QuotaResult, AlterPartitionResult, ReassignResult, ElectionResult)

C = TypeVar("C")

# A conflict means that somebody else wrote between our look and our write. With one controller that is a new one;
# several in a row are not bad luck.
ATTEMPTS_MAX = 5
RETRY_S = 1.0  # After the store was away. The store itself has waited before it gave up.


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
        self._seen = EMPTY_IMAGE
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.unclean_elections = 0  # Leaders that lack what was committed, since this broker started.

    def start(self) -> None:
        """From now on, keep partitions in order whenever this broker is the controller."""
        self._metadata.subscribe(self._on_image)
        self._on_image(self._metadata.image)
        self._tasks = [
            asyncio.create_task(self._react(), name="controller"),
            asyncio.create_task(self._rebalance(), name="preferred leaders"),
        ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

    async def alter_partitions(
        self, sender: NodeId, sender_epoch: int, changes: Sequence[AlterPartition]
    ) -> list[AlterPartitionResult]:
        """Other in-sync replicas, as the leader `sender` asks. Refused when it has registered anew since."""
        return await self._carry_out_in_portions(
            changes, lambda image, portion: plan_alter_partitions(image, sender, sender_epoch, portion)
        )

    async def reassign_partitions(
        self, commands: Sequence[Reassign], *, allow_factor_change: bool = True
    ) -> list[ReassignResult]:
        """Begin to move partitions, or stop it. They have arrived when the image says so."""
        return await self._carry_out_in_portions(
            commands, lambda image, portion: plan_reassign(image, portion, allow_factor_change=allow_factor_change)
        )

    async def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None
    ) -> list[ElectionResult]:
        """Other leaders for the partitions that need them; None: for all that do, and only those are answered."""
        if partitions is None:
            partitions = needing_election(self._metadata.image, election_type)
        results = await self._carry_out_in_portions(
            partitions, lambda image, portion: plan_elections(image, election_type, portion)
        )
        self._note([result.moved for result in results if result.moved and result.code is ErrorCode.none])
        return results

    async def _carry_out_in_portions(
        self, commands: Sequence[C], decide: Callable[[ClusterImage, Sequence[C]], Plan[R]]
    ) -> list[R]:
        """For what changes partitions: each portion is one commit."""
        results: list[R] = []
        for start in range(0, len(commands), WRITES_AT_ONCE_MAX):
            portion = commands[start : start + WRITES_AT_ONCE_MAX]
            results += await self._carry_out(partial(_decide_portion, decide, portion))
        return results

    async def _carry_out(self, decide: Callable[[ClusterImage], Plan[R]], validate_only: bool = False) -> list[R]:
        async with self._lock:
            for _ in range(ATTEMPTS_MAX):
                image = self._metadata.image
                plan: Plan[R] = decide(image)
                if image.controller_id != self._config.node_id:
                    return _failed(plan, ErrorCode.not_controller, "This broker is not the controller")
                if validate_only or not plan.writes:
                    return plan.results
                try:
                    revision = await self._commit(image, plan)
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

    async def _commit(self, image: ClusterImage, plan: Plan[Any]) -> int:
        """Write the plan as the controller of `image`, in one commit if that is possible; gives the deciding one."""
        epoch_check = Check(records.CONTROLLER_EPOCH, image.controller_epoch_version)
        at_once = plan.all_writes
        if (plan.before or plan.after) and len(list(islice(in_commits(at_once), 2))) > 1:
            for writes in in_commits(plan.before):
                await self._store.commit([epoch_check], writes)
            at_once = plan.writes  # What comes after is litter, and tidied up when the image shows it.
        return await self._store.commit([epoch_check, *plan.checks], at_once)

    # Keeping order ----------------------------------------------------------------------------------------------------

    def _on_image(self, image: ClusterImage) -> None:
        seen, self._seen = self._seen, image
        if image.controller_id == self._config.node_id and may_be_due(seen, image):
            self._due.set()

    async def _react(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._put_in_order()
            except StoreUnavailable as error:
                log.warning("partitions cannot be put in order", reason=error)
                await asyncio.sleep(RETRY_S)
                self._due.set()
            except Exception:
                # Without this task no partition would ever get a leader again.
                log.exception("partitions cannot be put in order")
                await asyncio.sleep(RETRY_S)
                self._due.set()

    async def _put_in_order(self) -> None:
        """Return when nothing is due, or when somebody else is the controller."""
        is_controller = True
        while is_controller:
            image = self._metadata.image
            due = due_partitions(image, self._config)
            if not due and not image.unplaced:
                return
            for start in range(0, len(due), WRITES_AT_ONCE_MAX):
                is_controller = is_controller and await self._settle(due[start : start + WRITES_AT_ONCE_MAX])
            is_controller = is_controller and await self._tidy()

    async def _settle(self, partitions: Sequence[TopicPartition]) -> bool:
        """Put these partitions in order; gives whether this broker was the controller."""
        async with self._lock:
            image = self._metadata.image
            if image.controller_id != self._config.node_id:
                return False
            plan = plan_partitions(image, self._config, partitions)
            if plan.writes and await self._commit_and_follow(image, plan):
                self._note(plan.results)
            return True

    def _note(self, changed: Sequence[Moved]) -> None:
        if not changed:
            return
        for moved in changed:
            if moved.is_unclean:
                self.unclean_elections += 1
                log.warning(
                    "unclean leader elected, records may be lost",
                    partition=moved.partition,
                    leader=moved.after.leader,
                    in_sync=moved.before.isr,
                    unclean_elections=self.unclean_elections,
                )
        log.info("partitions changed", count=len(changed), new_leaders=sum(moved.is_new_leader for moved in changed))

    async def _rebalance(self) -> None:
        """Every now and then, give partitions back to their preferred leaders."""
        while True:
            await asyncio.sleep(self._config.leader_imbalance_check_interval_seconds)
            image = self._metadata.image
            if (
                image.controller_id == self._config.node_id
                and image.broker_config(self._config).auto_leader_rebalance_enable
            ):
                try:
                    await self.elect_leaders(ElectionType.PREFERRED, None)
                except Exception:
                    # The next time it may be possible.
                    log.exception("preferred leaders cannot be elected")

    async def _tidy(self) -> bool:
        """Delete what is left of topics that are not there; gives whether this broker was the controller."""
        while True:
            async with self._lock:
                image = self._metadata.image
                if image.controller_id != self._config.node_id:
                    return False
                plan = plan_tidying(image)
                if not plan.writes:
                    return True
                await self._commit_and_follow(image, plan)

    async def _commit_and_follow(self, image: ClusterImage, plan: Plan[Any]) -> bool:
        """Whether it was written. The image has followed, or else shows what was in the way."""
        try:
            revision = await self._commit(image, plan)
        except Conflict as conflict:
            await self._metadata.applied(conflict.revision)
            return False
        await self._metadata.applied(revision)
        return True


def _decide_portion(
    decide: Callable[[ClusterImage, Sequence[C]], Plan[R]], portion: Sequence[C], image: ClusterImage
) -> Plan[R]:
    return decide(image, portion)


def _failed(plan: Plan[R], code: ErrorCode, message: str) -> list[R]:
    """The plan's answers with those that would have been a success replaced: nothing was written."""
    return [
        result._replace(code=code, message=message) if result.code is ErrorCode.none else result
        for result in plan.results
    ]
