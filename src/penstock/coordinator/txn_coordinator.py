"""Transactional ids of this broker: their shards on the coordinators' runtime, and the end of their transactions.

EndTxn is answered when the decision is committed. A task of its own then has the markers written and notes that the
transaction is complete; whoever coordinates the id after a crash begins that again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import TimerWheel
from penstock.cluster.image import BrokerRegistration
from penstock.cluster.metadata import Metadata
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.base import Conflict, StoreUnavailable
from penstock.coordinator.runtime import CoordinatorRuntime, CoordinatorTopic, CreateTopics
from penstock.coordinator.shard_runner import ShardRunner
from penstock.coordinator.txn import records
from penstock.coordinator.txn.commands import AddPartitions, EndTxn, InitProducerId
from penstock.coordinator.txn.decision import Decision, Now, ProducerIdNeeded, Token
from penstock.coordinator.txn.markers import MarkerWriter, TxnMarker
from penstock.coordinator.txn.metadata import TransactionMetadata
from penstock.coordinator.txn.replies import PartitionsReply, ProducerReply
from penstock.coordinator.txn.states import TxnState
from penstock.coordinator.txn.txn_config import TxnConfig
from penstock.coordinator.txn.txn_shard import TxnShard
from penstock.coordinator.txn.views import TxnFilter
from penstock.partition.manager import PartitionManager
from penstock.storage.fs import FileSystem

log = get_logger(__name__)

TRANSACTION_STATE_TOPIC = "__transaction_state"
FAILED_RETRY_S = 30.0  # After an error that nobody has thought of: it fills the log.
TURN_S_MAX = 0.5  # Longer than an end takes when all is well. Nobody's connection waits for more than that.
RETRY_S = 0.5  # While the coordinator's own partition takes nothing: too few replicas in sync, or a full disk.

T = TypeVar("T")
DecideWithId = Callable[[TxnShard, int | None, Token, Now], Decision]


class TxnCoordinator:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        metadata: Metadata,
        create_topics: CreateTopics,
        partitions: PartitionManager,
        producer_ids: ProducerIds,
        markers: MarkerWriter,
        clock: Clock,
        timers: TimerWheel,
        fs: FileSystem,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._producer_ids = producer_ids
        self._markers = markers
        self._clock = clock
        self._txn_config = TxnConfig(
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            is_two_phase_allowed=config.transaction_two_phase_commit_enable,
        )
        self._runtime = CoordinatorRuntime(
            node_id=config.node_id,
            topic=CoordinatorTopic(
                name=TRANSACTION_STATE_TOPIC,
                partition_count=config.transaction_state_log_num_partitions,
                replication_factor=config.transaction_state_log_replication_factor,
                config={
                    "cleanup.policy": "compact",
                    "compression.type": "uncompressed",
                    "min.insync.replicas": str(config.transaction_state_log_min_isr),
                    "segment.bytes": str(config.transaction_state_log_segment_bytes),
                    "unclean.leader.election.enable": "false",
                },
            ),
            new_shard=lambda: TxnShard(self._txn_config),
            codec=records,
            create_topics=create_topics,
            partitions=partitions,
            clock=clock,
            timers=timers,
            fs=fs,
            on_loaded=lambda number, runner: self._begin_completing(runner),
            on_closed=lambda number, runner: self._stop_completing(runner),
        )
        self._completing: dict[ShardRunner[TxnShard], asyncio.Task[None]] = {}
        # By transactional id, whom to tell that its transaction has ended, in the order in which they came: a set has
        # another one in every process. No more than there are requests.
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}

    def start(self) -> None:
        """Follow the image; to be called after the partitions have subscribed to it."""
        self._runtime.apply(self._metadata.image)
        self._metadata.subscribe(self._runtime.apply)
        self._runtime.run_every(
            self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            TxnShard.abort_timed_out,
            "transaction timeouts",
        )
        self._runtime.run_every(
            self._config.transaction_remove_expired_transaction_cleanup_interval_ms,
            TxnShard.expire,
            "transactional id expiry",
        )

    async def stop(self) -> None:
        await self._runtime.stop()

    def on_roles_changed(self) -> None:
        """Coordinate what this broker leads, and nothing else."""
        self._runtime.on_roles_changed()

    # Commands

    async def find(self, transactional_id: str) -> BrokerRegistration:
        """The broker that coordinates the id; the topic behind it is made when it is first needed."""
        return await self._runtime.find(transactional_id)

    async def init_producer_id(self, command: InitProducerId) -> ProducerReply:
        def decide(shard: TxnShard, new_id: int | None, token: Token, now: Now) -> Decision:
            return shard.init_producer_id(command, new_id, token, now)

        return await self._in_turn(
            command.transactional_id,
            lambda: self._call_with_id(command.transactional_id, decide),
            lambda reply: reply.error_code is ErrorCode.concurrent_transactions,
        )

    async def end(self, command: EndTxn) -> ProducerReply:
        def decide(shard: TxnShard, new_id: int | None, token: Token, now: Now) -> Decision:
            return shard.end(command, new_id, token, now)

        return await self._call_with_id(command.transactional_id, decide)

    async def add_partitions(self, command: AddPartitions) -> PartitionsReply:
        reply = await self._runtime.call(
            command.transactional_id, lambda shard, token, now: shard.add_partitions(command, token, now)
        )
        assert isinstance(reply, PartitionsReply)
        return reply

    async def add_partitions_in_turn(self, command: AddPartitions) -> PartitionsReply:
        """As `add_partitions`, once the transaction before has ended; CONCURRENT_TRANSACTIONS if that takes long."""
        return await self._in_turn(
            command.transactional_id,
            lambda: self.add_partitions(command),
            lambda reply: ErrorCode.concurrent_transactions in reply.codes.values(),
        )

    async def _in_turn(
        self, transactional_id: str, ask: Callable[[], Awaitable[T]], is_early: Callable[[T], bool]
    ) -> T:
        """The answer; if it is that a transaction still ends, the one after that.

        A transaction ends in milliseconds, and clients ask again after twenty, or a hundred.
        """
        ended = asyncio.get_running_loop().create_future()  # Before asking: it may end while the answer is committed.
        waiting = self._waiting.setdefault(transactional_id, {})
        waiting[ended] = None
        try:
            answer = await ask()
            if is_early(answer):
                await asyncio.wait((ended,), timeout=TURN_S_MAX)
                if ended.done():
                    answer = await ask()
            return answer
        finally:
            waiting.pop(ended, None)
            if not waiting and self._waiting.get(transactional_id) is waiting:
                del self._waiting[transactional_id]

    def _tell_ended(self, transactional_id: str) -> None:
        for ended in self._waiting.pop(transactional_id, ()):
            if not ended.done():
                ended.set_result(None)

    async def verify_partitions(self, command: AddPartitions) -> PartitionsReply:
        reply = await self._runtime.call(
            command.transactional_id, lambda shard, token, now: shard.verify_partitions(command, token)
        )
        assert isinstance(reply, PartitionsReply)
        return reply

    async def _call_with_id(self, transactional_id: str, decide: DecideWithId) -> ProducerReply:
        """Refused when this broker cannot answer for the id."""
        try:
            return await self._call(transactional_id, None, decide)
        except ProducerIdNeeded:
            pass  # About once in the life of a transactional id.
        try:
            new_id = await self._producer_ids.allocate()
        except (StoreUnavailable, Conflict) as error:
            raise Refused(ErrorCode.coordinator_not_available, str(error)) from error
        return await self._call(transactional_id, new_id, decide)

    async def _call(self, transactional_id: str, new_id: int | None, decide: DecideWithId) -> ProducerReply:
        reply = await self._runtime.call(transactional_id, lambda shard, token, now: decide(shard, new_id, token, now))
        assert isinstance(reply, ProducerReply)
        return reply

    # Looking

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        return self._runtime.look(transactional_id, lambda shard: shard.transactions.get(transactional_id))

    def listed(self, wanted: TxnFilter) -> list[TransactionMetadata]:
        """Of those that this broker coordinates; Refused while a part of them is still loaded."""
        now_ms = self._clock.now_ms()
        return [found for shard in self._runtime.shards() for found in shard.listed(wanted, now_ms)]

    # Ends

    def _begin_completing(self, runner: ShardRunner[TxnShard]) -> None:
        self._completing[runner] = self._runtime.spawn(
            self._complete_all(runner), f"ends of transactions {runner.partition.topic_partition}"
        )

    def _stop_completing(self, runner: ShardRunner[TxnShard]) -> None:
        task = self._completing.pop(runner, None)
        if task is not None:
            task.cancel()

    async def _complete_all(self, runner: ShardRunner[TxnShard]) -> None:
        """Bring every decided transaction to its end, those that were found in the log and those to come."""
        shard, more = runner.shard, asyncio.Event()
        shard.on_ending = more.set
        async with asyncio.TaskGroup() as ends:
            while True:
                more.clear()
                for ending in shard.take_ending():
                    ends.create_task(self._complete(runner, ending))
                await more.wait()

    async def _complete(self, runner: ShardRunner[TxnShard], ending: TransactionMetadata) -> None:
        while True:
            try:
                return await self._write_markers(runner, ending)
            except Exception:
                # A task root. It is decided, and its readers wait: what went wrong may pass.
                log.exception("transaction cannot be completed yet", transactional_id=ending.transactional_id)
            await asyncio.sleep(FAILED_RETRY_S)

    async def _write_markers(self, runner: ShardRunner[TxnShard], ending: TransactionMetadata) -> None:
        await _until_committed(runner)
        marker = TxnMarker(
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            coordinator_epoch=runner.partition.leader_epoch,
            is_commit=ending.state is TxnState.PREPARE_COMMIT,
            transaction_version=ending.client_version,
        )
        await self._markers.write(marker, ending.partitions)
        while runner.shard.completing.get(ending.transactional_id) is ending:
            runner.run(lambda now: runner.shard.complete(ending, now))
            if runner.shard.completing.get(ending.transactional_id) is ending:  # It could not be appended.
                await asyncio.sleep(RETRY_S)
        self._tell_ended(ending.transactional_id)


async def _until_committed(runner: ShardRunner[TxnShard]) -> None:
    """Come back when all that the partition has is committed: nobody may see the markers of a decision that is lost."""
    end = runner.partition.log.log_end
    while True:
        committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def on_committed(code: ErrorCode, committed: asyncio.Future[ErrorCode] = committed) -> None:
            if not committed.done():
                committed.set_result(code)

        if runner.partition.when_committed(end, on_committed):
            return
        if await committed is ErrorCode.none:
            return
        await asyncio.sleep(RETRY_S)  # Too few replicas are in sync; or another broker leads, and this task ends.
