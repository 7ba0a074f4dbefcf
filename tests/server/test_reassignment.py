"""Elections, moves of partitions and of directories over a socket, in every version."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import RunningBroker, until
from test_forwarding import run_two

from penstock.base.errors import ErrorCode
from penstock.cluster.controller import Controller
from penstock.cluster.topic_plan import NewTopic
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct


async def create(one: RunningBroker, two: RunningBroker, *replicas: list[int]) -> None:
    topic = NewTopic(name="t", assignment=list(enumerate(replicas)))
    assert (await one.broker._controller.create_topics([topic]))[0].code is ErrorCode.none
    await until(lambda: "t" in two.broker.metadata.image.topics)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elect_leaders(tmp_path: Path, version: int) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await create(one, two, [1], [2])
        client = await two.connect()

        async def ask(partitions: list[Struct] | None, election_type: int = 0) -> tuple[int, dict[str, dict[int, int]]]:
            fields = {"topic_partitions": partitions, "election_type": election_type, "timeout_ms": 1000}
            reply = await client.ask(ApiKey.ELECT_LEADERS, version, **fields)
            results = {
                topic.topic: {item.partition_id: item.error_code for item in topic.partition_result}
                for topic in reply.replica_election_results
            }
            return (reply.error_code if version > 0 else 0), results

        asked = [Struct(topic="t", partitions=[0, 1, 2]), Struct(topic="u", partitions=[0])]
        not_needed, unknown = ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition
        assert await ask(asked) == (0, {"t": {0: not_needed, 1: not_needed, 2: unknown}, "u": {0: unknown}})
        assert await ask(None) == (0, {})
        if version > 0:
            assert await ask(None, election_type=1) == (0, {})
            assert (await ask(asked, election_type=7))[0] == ErrorCode.invalid_request
        client.close()

    run_two(tmp_path, scenario)


@pytest.mark.parametrize("version", [0, 1])
def test_a_partition_is_moved_shown_moved_back_and_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    may_be_in_sync = asyncio.Event()
    real = Controller.alter_partitions

    async def alter_partitions(self: Controller, *args: Any) -> Any:
        await may_be_in_sync.wait()
        return await real(self, *args)

    monkeypatch.setattr(Controller, "alter_partitions", alter_partitions)

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await create(one, two, [1], [1])
        client = await two.connect()

        async def move(replicas: list[int] | None, number: int = 0, **options: bool) -> Any:
            topics = [Struct(name="t", partitions=[Struct(partition_index=number, replicas=replicas)])]
            fields = {"allow_replication_factor_change": True, "timeout_ms": 1000, **options}
            reply = await client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, topics=topics, **fields)
            assert reply.error_code == ErrorCode.none
            return reply.responses[0].partitions[0].error_code

        async def moving(topics: list[Struct] | None = None) -> list[Any]:
            reply = await client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout_ms=1000, topics=topics)
            return [
                (
                    topic.name,
                    item.partition_index,
                    *map(list, (item.replicas, item.adding_replicas, item.removing_replicas)),
                )
                for topic in reply.topics
                for item in topic.partitions
            ]

        assert await moving() == []
        assert await move(None) == ErrorCode.no_reassignment_in_progress
        assert await move([3]) == ErrorCode.invalid_replica_assignment
        assert await move([2], number=9) == ErrorCode.unknown_topic_or_partition
        if version > 0:
            refused = await move([1, 2], allow_replication_factor_change=False)
            assert refused == ErrorCode.invalid_replication_factor
        assert await move([1, 2]) == ErrorCode.none
        on_its_way = [("t", 0, [1, 2], [2], [])]
        assert await moving() == on_its_way
        asked = [Struct(name="t", partition_indexes=[0, 1, 9]), Struct(name="u", partition_indexes=[0])]
        assert await moving(asked) == on_its_way
        assert await moving([Struct(name="t", partition_indexes=[1])]) == []
        await until(lambda: two.broker.metadata.image.topics["t"].partitions[0].adding == (2,))
        metadata = await client.ask(
            ApiKey.METADATA,
            8,
            topics=[Struct(name="t")],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        assert sorted(metadata.topics[0].partitions[0].replica_nodes) == [1, 2]
        assert await move(None) == ErrorCode.none
        assert await moving() == []
        may_be_in_sync.set()
        assert await move([2]) == ErrorCode.none
        await until(lambda: two.broker.metadata.image.topics["t"].partitions[0].replicas == (2,))
        state = two.broker.metadata.image.topics["t"].partitions[0]
        assert (state.leader, state.isr, state.adding, state.removing) == (2, (2,), (), ())
        client.close()

    run_two(tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_replicas_are_in_the_one_directory_there_is(tmp_path: Path, version: int) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await create(one, two, [1], [2])
        client = await one.connect()
        path = one.broker.partitions.log_dir_description().path

        async def ask(directory: str) -> dict[int, int]:
            topics = [Struct(name="t", partitions=[0, 1])]
            dirs = [Struct(path=directory, topics=topics)]
            reply = await client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
            return {item.partition_index: item.error_code for item in reply.results[0].partitions}

        assert await ask(path) == {0: ErrorCode.none, 1: ErrorCode.replica_not_available}
        assert await ask("/etc") == dict.fromkeys((0, 1), ErrorCode.log_dir_not_found)
        client.close()

    run_two(tmp_path, scenario)


def test_throttles_are_set_shown_and_deleted_also_when_they_were_never_set(tmp_path: Path) -> None:
    """As kafka-reassign-partitions does: --throttle sets them, --verify and --cancel delete them in any case."""

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await create(one, two, [1])
        client = await two.connect()

        async def alter(kind: int, name: str, operation: int, value: str | None, *settings: str) -> int:
            configs = [Struct(name=item, config_operation=operation, value=value) for item in settings]
            resource = Struct(resource_type=kind, resource_name=name, configs=configs)
            reply = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
            return int(reply.responses[0].error_code)

        rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
        replicas = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
        log_dir_rate = "replica.alter.log.dirs.io.max.bytes.per.second"
        assert await alter(4, "1", 1, None, *rates, log_dir_rate) == ErrorCode.none
        assert await alter(2, "t", 1, None, *replicas) == ErrorCode.none
        quota = one.broker.partitions.leader_quota
        assert not quota.is_active
        assert await alter(4, "1", 0, "1000", *rates) == ErrorCode.none
        assert await alter(2, "t", 0, "0:1,7:2", *replicas) == ErrorCode.none
        await until(lambda: quota.is_throttled("t", 0))
        assert not quota.is_throttled("t", 7)
        assert not two.broker.partitions.leader_quota.is_active
        assert await alter(4, "1", 0, "0", *rates) == ErrorCode.invalid_config
        assert await alter(2, "t", 0, "0", *replicas) == ErrorCode.invalid_config
        assert await alter(4, "1", 0, "1000", log_dir_rate) == ErrorCode.invalid_request
        assert await alter(4, "1", 1, None, *rates, log_dir_rate) == ErrorCode.none
        await until(lambda: not quota.is_active)
        client.close()

    run_two(tmp_path, scenario)
