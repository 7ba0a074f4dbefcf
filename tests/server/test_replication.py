"""Three brokers in this process over real sockets and disks: what is written to one is on all, and outlives one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import Client, RunningBroker, fetch_fields, running_broker, until

from penstock.base.config import RACK_AWARE_SELECTOR
from penstock.base.errors import ErrorCode
from penstock.base.types import NodeId, Offset
from penstock.cluster.image import PartitionState
from penstock.cluster.store.memory import MemoryStore
from penstock.partition.partition import Partition
from penstock.server.api import ApiKey
from penstock.server.fetch_session import QUIET_S_MAX
from penstock.storage.disk_read import at_start
from penstock.wire.codec import Struct


class Cluster:
    def __init__(self, directory: Path, *, racks: bool = False, **settings: Any) -> None:
        self._racks = racks
        self.store = MemoryStore()
        self.brokers: dict[int, RunningBroker] = {}
        self._directory = directory
        self._settings = settings
        self._stacks: dict[int, AsyncExitStack] = {}

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            stack = self._stacks[node_id] = AsyncExitStack()
            settings = {"rack": f"rack-{node_id}" if self._racks else None, **self._settings}
            self.brokers[node_id] = await stack.enter_async_context(
                running_broker(self._directory / str(node_id), self.store, node_id=NodeId(node_id), **settings)
            )

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids:
            del self.brokers[node_id]
            await self._stacks.pop(node_id).aclose()

    async def create_topic(self, name: str, replicas: list[list[int]], **config: str) -> None:
        client = await self.brokers[self.controller].connect()
        entry = Struct(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[Struct(partition_index=number, broker_ids=ids) for number, ids in enumerate(replicas)],
            configs=[Struct(name=key.replace("_", "."), value=value) for key, value in config.items()],
        )
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, topics=[entry], timeout_ms=60_000, validate_only=False)
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        client.close()
        await until(lambda: all(name in broker.broker.metadata.image.topics for broker in self.brokers.values()))

    @property
    def controller(self) -> int:
        return next(iter(self.brokers.values())).broker.metadata.image.controller_id

    def state(self, topic: str = "t", number: int = 0) -> PartitionState:
        return next(iter(self.brokers.values())).broker.metadata.image.topics[topic].partitions[number]

    def partition(self, node_id: int, topic: str = "t", number: int = 0) -> Partition:
        return self.brokers[node_id].partition(topic, number)

    async def leader(self, topic: str = "t") -> Client:
        """A connection to the leader, once there is one and it knows."""
        await until(lambda: self.state(topic).leader in self.brokers)
        leader = self.state(topic).leader
        await until(lambda: self.partition(leader, topic).leading is not None)
        return await self.brokers[leader].connect()

    def log_bytes(self, node_id: int, topic: str = "t", start: int = 0) -> bytes:
        log = self.partition(node_id, topic).log
        # The machine may have given up the pages meanwhile.
        return bytes(at_start(partial(log.read, Offset(start), 1 << 20, log.log_end, at_least_one=True)))


@asynccontextmanager
async def three_brokers(directory: Path, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory, **{"replica_fetch_wait_max_ms": 50, **settings})
    await cluster.start(1, 2, 3)
    try:
        yield cluster
    finally:
        await cluster.stop(*cluster.brokers)


def run(directory: Path, scenario: Callable[[Cluster], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with three_brokers(directory, **settings) as cluster:
            await scenario(cluster)

    asyncio.run(main())


def test_what_is_acked_is_on_every_replica_byte_for_byte(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        for number in range(20):
            result = await client.produce("t", b"%d" % number)
            assert (result.error_code, result.base_offset) == (0, number)
            for node_id in (1, 2, 3):
                assert cluster.partition(node_id).log.synced_end >= number + 1
        assert cluster.log_bytes(1) == cluster.log_bytes(2) == cluster.log_bytes(3)
        # Followers learn what is committed.
        await until(lambda: all(cluster.partition(node_id).high_watermark == 20 for node_id in (1, 2, 3)))
        client.close()

    run(tmp_path, scenario)


def test_a_busy_partition_does_not_have_all_others_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, followers = 30, 2
    looks: Counter[str] = Counter()
    on_follower_fetch = Partition.on_follower_fetch

    def counted(partition: Partition, *arguments: Any) -> Any:
        looks[partition.topic_partition.topic] += 1
        return on_follower_fetch(partition, *arguments)

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("idle", [[1, 2, 3]] * idle)
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        idler = await cluster.leader("idle")
        await client.produce("t", b"first")
        await asyncio.sleep(2 * QUIET_S_MAX)
        looks.clear()
        before = idle_states(cluster)
        clock = asyncio.get_running_loop().time
        began_s = clock()
        while clock() < began_s + 2:  # Twice as long as a follower may be behind.
            assert (await client.produce("t", b"busy")).error_code == 0
        times = (clock() - began_s) / QUIET_S_MAX + 2
        assert looks["idle"] <= idle * followers * times
        assert looks["t"] > followers * times * 2
        # They are in sync all the same, and what is written to them is copied at once.
        for number in range(idle):
            assert (await idler.produce("idle", b"at last", partitions=(number,))).error_code == 0
        assert idle_states(cluster) == before
        assert {len(state.isr) for state in before} == {1 + followers}
        for other in (client, idler):
            other.close()

    def idle_states(cluster: Cluster) -> tuple[PartitionState, ...]:
        return cluster.brokers[1].broker.metadata.image.topics["idle"].partitions

    monkeypatch.setattr(Partition, "on_follower_fetch", counted)
    run(tmp_path, scenario, replica_lag_time_max_ms=1000)


def test_a_leader_that_stops_hands_over_and_comes_back(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]], min_insync_replicas="2")
        client = await cluster.leader()
        assert (await client.produce("t", b"before")).error_code == 0
        client.close()
        epoch = cluster.state().leader_epoch
        await cluster.stop(1)
        client = await cluster.leader()
        assert cluster.state().leader == 2
        assert cluster.state().leader_epoch > epoch
        assert sorted(cluster.state().isr) == [2, 3]
        assert (await client.produce("t", b"after")).base_offset == 1
        await cluster.start(1)
        await until(lambda: sorted(cluster.state().isr) == [1, 2, 3], "broker 1 is in sync again")
        assert (await client.produce("t", b"at last")).base_offset == 2
        assert cluster.log_bytes(1) == cluster.log_bytes(2) == cluster.log_bytes(3)
        client.close()

    run(tmp_path, scenario)


def test_reliability_rule_8_too_few_in_sync_replicas_promise_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]], min_insync_replicas="2")
        await cluster.stop(2, 3)
        client = await cluster.leader()
        await until(lambda: cluster.state().isr == (1,))
        result = await client.produce("t", b"no")
        assert result.error_code == ErrorCode.not_enough_replicas
        assert cluster.partition(1).log.log_end == 0
        # Whoever asks for less gets it, and nobody reads it before it is safe.
        assert (await client.produce("t", b"yes", acks=1)).error_code == 0
        assert cluster.partition(1).high_watermark == 0
        await cluster.start(2)
        await until(lambda: cluster.partition(1).high_watermark == 1)
        client.close()

    run(tmp_path, scenario)


def test_a_follower_that_was_away_copies_what_it_missed(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]], segment_bytes="1024")
        await cluster.stop(3)
        client = await cluster.leader()
        for number in range(50):
            assert (await client.produce("t", b"%d" % number * 50)).error_code == 0
        await cluster.start(3)
        await until(lambda: cluster.partition(3).log.log_end == 50)
        assert cluster.log_bytes(3) == cluster.log_bytes(1)
        client.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_follower_that_has_nothing_the_leader_still_has_begins_anew(tmp_path: Path, epochs: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        assert (await client.produce("t", b"old")).error_code == 0
        await cluster.stop(3)
        if epochs == 2:  # Where the epoch ended that the follower knows, there are no records any more either.
            client.close()
            await cluster.stop(1)
            client = await cluster.leader()
        for _ in range(3):
            assert (await client.produce("t", b"older than what is kept")).error_code == 0
        partition = Struct(partition_index=0, offset=3)
        await client.ask(ApiKey.DELETE_RECORDS, 2, topics=[Struct(name="t", partitions=[partition])], timeout_ms=1000)
        await cluster.start(3)
        await until(lambda: cluster.partition(3).log.log_end == 4)
        assert cluster.partition(3).log.log_start == 3
        client.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("kept", [b"also kept", None])
def test_a_follower_begins_anew_inside_a_batch_where_the_leader_does(tmp_path: Path, kept: bytes | None) -> None:
    """Records were deleted up to the middle of a batch, and batches are sent whole (as KAFKA-6361)."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        assert (await client.produce("t", b"old")).error_code == 0
        await cluster.stop(3)
        assert (await client.produce("t", b"old", b"older than what is kept", b"kept")).error_code == 0
        if kept is not None:
            assert (await client.produce("t", kept)).error_code == 0
        partition = Struct(partition_index=0, offset=3)
        await client.ask(ApiKey.DELETE_RECORDS, 2, topics=[Struct(name="t", partitions=[partition])], timeout_ms=1000)
        end = cluster.partition(1).log.log_end
        for _ in range(2):  # What a start finds is the same.
            await cluster.start(3)
            await until(lambda: cluster.partition(3).log.synced_end == end)
            await until(lambda: sorted(cluster.state().isr) == [1, 2, 3], "all in sync")
            copy = cluster.partition(3)
            assert (copy.log_start, copy.log.failure) == (3, None)
            assert copy.log_start <= copy.high_watermark <= copy.log.log_end
            assert cluster.log_bytes(3, start=3) == cluster.log_bytes(1, start=3)
            await cluster.stop(3)
        client.close()

    run(tmp_path, scenario)


def test_reliability_rule_1_a_tail_that_only_the_old_leader_has_is_cut_off(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        assert (await client.produce("t", b"common")).error_code == 0
        client.close()
        # Broker 1 writes what nobody copies: its followers are held at their disks, then it is gone.
        for node_id in (2, 3):
            cluster.brokers[node_id].disk.hold()
        client = await cluster.leader()
        result = await client.produce("t", b"never committed", timeout_ms=100)
        assert result.error_code == ErrorCode.request_timed_out
        client.close()
        await until(lambda: cluster.partition(1).log.log_end == 2)
        cluster.store.expire_leases("broker-1")
        for node_id in (2, 3):
            cluster.brokers[node_id].disk.release()
        await until(lambda: cluster.state().leader in (2, 3) or cluster.state().leader_epoch > 0)
        client = await cluster.leader()
        assert (await client.produce("t", b"new")).error_code == 0
        await until(lambda: sorted(cluster.state().isr) == [1, 2, 3], "all in sync")
        assert cluster.log_bytes(1) == cluster.log_bytes(2) == cluster.log_bytes(3)
        client.close()

    run(tmp_path, scenario)


def test_reliability_rule_16_a_leader_whose_disk_fails_gives_way(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]], min_insync_replicas="2")
        client = await cluster.leader()
        assert (await client.produce("t", b"kept")).error_code == 0
        cluster.brokers[1].disk.error = OSError(5, "Input/output error")
        result = await client.produce("t", b"lost or kept")
        assert result.error_code in (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
        client.close()
        await until(lambda: cluster.state().leader in (2, 3), "another leads")
        client = await cluster.leader()
        await until(lambda: 1 not in cluster.state().isr)
        assert (await client.produce("t", b"goes on")).error_code == 0
        client.close()
        cluster.brokers[1].disk.error = None

    run(tmp_path, scenario)


def test_reliability_rule_10_a_leader_of_a_former_life_is_elected_anew(tmp_path: Path) -> None:
    """Its log may have lost what its followers have, in the same epoch: nobody could tell the two apart."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        assert (await client.produce("t", b"a")).error_code == 0
        client.close()
        before = cluster.state()
        cluster.store.expire_leases("broker-1")
        await until(lambda: cluster.state().leader_epoch > before.leader_epoch)
        await until(lambda: sorted(cluster.state().isr) == [1, 2, 3])
        client = await cluster.leader()
        assert (await client.produce("t", b"b")).base_offset == 1
        assert cluster.log_bytes(1) == cluster.log_bytes(2) == cluster.log_bytes(3)
        client.close()

    run(tmp_path, scenario)


def test_reliability_rule_23_clients_cannot_pose_as_followers(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        topic_id = cluster.brokers[1].broker.metadata.image.topics["t"].topic_id
        partition = Struct(partition=0, fetch_offset=0, partition_max_bytes=1000)
        answer = await client.ask(
            ApiKey.FETCH, 17, max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1,
            replica_state=Struct(replica_id=2, replica_epoch=1), forgotten_topics_data=[],
            topics=[Struct(topic_id=topic_id, partitions=[partition])],
        )  # fmt: skip
        assert answer.responses[0].partitions[0].error_code == ErrorCode.topic_authorization_failed
        client.close()

    run(tmp_path, scenario)


def test_a_consumer_reads_in_its_own_rack(tmp_path: Path) -> None:
    """KIP-392."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        client = await cluster.leader()
        assert (await client.produce("t", b"value")).error_code == 0
        answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0)), rack_id="rack-2")
        told = answer.responses[0].partitions[0]
        assert (told.error_code, told.preferred_read_replica, bytes(told.records)) == (0, 2, b"")
        # In no rack of ours, or in the leader's: the leader answers.
        for rack_id in ("rack-1", "elsewhere", ""):
            answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0)), rack_id=rack_id)
            told = answer.responses[0].partitions[0]
            assert (told.preferred_read_replica, len(told.records) > 0) == (-1, True)
        other = await cluster.brokers[2].connect()
        number = other.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 1), wait_ms=60_000), rack_id="rack-2")
        assert number == 1
        assert (await client.produce("t", b"next")).error_code == 0
        answer = await other.receive_reply(ApiKey.FETCH, 12)
        assert len(answer.responses[0].partitions[0].records) > 0
        # Clients that know nothing of this are sent to the leader.
        answer = await other.ask(ApiKey.FETCH, 10, **fetch_fields(("t", 0, 0)))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.not_leader_or_follower
        client.close()
        other.close()

    run(tmp_path, scenario, racks=True, replica_selector_class=RACK_AWARE_SELECTOR)


def test_groups_move_with_their_partition(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = await cluster.brokers[cluster.controller].connect()
        answer = await client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        first = answer.coordinators[0].node_id
        client.close()
        client = await cluster.brokers[first].connect()
        offset = Struct(partition_index=0, committed_offset=42, committed_leader_epoch=-1, committed_metadata="")
        commit = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [Struct(name="x", partitions=[offset])],
        }
        await cluster.create_topic("x", [[1, 2, 3]])

        code = -1
        while code != ErrorCode.none:
            await asyncio.sleep(0.01)
            answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, **commit)
            code = answer.topics[0].partitions[0].error_code
        client.close()
        await cluster.stop(first)
        found = None
        while found is None:
            other = await next(iter(cluster.brokers.values())).connect()
            answer = await other.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
            second = answer.coordinators[0].node_id
            other.close()
            if second in cluster.brokers:
                client = await cluster.brokers[second].connect()
                group = Struct(group_id="g", topics=[Struct(name="x", partition_indexes=[0])])
                answer = await client.ask(ApiKey.OFFSET_FETCH, 8, groups=[group], require_stable=False)
                if answer.groups[0].error_code == 0:
                    found = answer.groups[0].topics[0].partitions[0].committed_offset
                client.close()
            await asyncio.sleep(0.01)
        assert found == 42

    run(tmp_path, scenario)


@pytest.mark.parametrize(("side", "replica"), [("leader", "0:1"), ("follower", "0:3")])
def test_a_throttled_move_takes_its_time_and_holds_up_nobody(tmp_path: Path, side: str, replica: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2]], **{f"{side}_replication_throttled_replicas": replica})
        await cluster.create_topic("u", [[1, 2, 3]])
        client = await cluster.leader()
        for _ in range(40):
            assert (await client.produce("t", b"x" * 10_000)).error_code == 0
        rate = Struct(name=f"{side}.replication.throttled.rate", config_operation=0, value="200000")
        brokers = [Struct(resource_type=4, resource_name=name, configs=[rate]) for name in ("1", "3")]
        altered = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=brokers, validate_only=False)
        assert [item.error_code for item in altered.responses] == [0, 0]
        quotas = cluster.brokers[int(replica[-1])].broker._replicas._replication.quotas
        await until(lambda: (quotas.leader if side == "leader" else quotas.follower).is_active)

        began_s = asyncio.get_running_loop().time()
        topics = [Struct(name="t", partitions=[Struct(partition_index=0, replicas=[1, 2, 3])])]
        moved = await client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=topics)
        assert moved.responses[0].partitions[0].error_code == 0
        # Those in sync are waited for, the third is not.
        assert (await client.produce("t", b"y")).error_code == 0
        assert (await client.produce("u", b"y")).error_code == 0
        assert 3 not in cluster.state().isr
        await until(lambda: 3 in cluster.state().isr, "the third is in sync")
        # 400 kB at 200 kB/s, of which a second's worth and a batch may come at once.
        assert asyncio.get_running_loop().time() - began_s >= (400_000 - 200_000 - 20_000) / 200_000
        # In sync it is throttled no more: this would take 20 s.
        for _ in range(40):
            assert (await client.produce("t", b"x" * 100_000)).error_code == 0
        assert asyncio.get_running_loop().time() - began_s < 15
        assert cluster.log_bytes(3) == cluster.log_bytes(1)
        client.close()

    run(tmp_path, scenario)


def test_thousands_of_new_partitions_do_not_hold_up_the_broker(tmp_path: Path) -> None:
    """Their leaders are asked for all of them at once by followers; the broker's lease must be renewed meanwhile."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        await cluster.create_topic("many", [[number % 3 + 1, (number + 1) % 3 + 1] for number in range(900)])
        client = await cluster.leader()
        assert (await client.produce("t", b"meanwhile")).error_code == 0
        client.close()
        hosted = [number for number in range(900) if number % 3 in (0, 2)]
        broker = cluster.brokers[1].broker
        await until(lambda: all(("many", number) in broker.partitions._partitions for number in hosted))
        assert all(len(cluster.state("many", number).isr) == 2 for number in range(900))

    run(tmp_path, scenario)
