"""A transactional client without a library: each request of both versions of the protocol, and who to send it to."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from in_process_broker import RunningBroker

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch
from penstock.wire.codec import Struct

NONE = ErrorCode.none
RETRIED = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
}
GROUP_KEY, TXN_KEY = 0, 1


class Brokers:
    """Whoever coordinates what is asked for, found as a client finds it."""

    def __init__(self, brokers: Callable[[], list[RunningBroker]]) -> None:
        self._brokers = brokers

    async def ask(self, kind: int, coordinated: str, key: ApiKey, version: int, **fields: Any) -> Struct:
        """The reply of the coordinator of that kind; asked again where clients do so."""
        while True:
            first = await self._brokers()[0].connect()
            found = await first.ask(ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=[coordinated])
            first.close()
            port = found.coordinators[0].port
            broker = next((one for one in self._brokers() if one.listener.port == port), None)
            if broker is not None:
                client = await broker.connect()
                answer = await client.ask(key, version, **fields)
                client.close()
                if code_of(answer) not in RETRIED:
                    return answer
            await asyncio.sleep(0.01)

    async def ask_leader(self, topic: str, partition: int, key: ApiKey, version: int, **fields: Any) -> Struct:
        """The reply of the partition's leader; asked again where clients do so."""
        while True:
            for broker in self._brokers():
                if broker.partition(topic, partition).leading is not None:
                    client = await broker.connect()
                    answer = await client.ask(key, version, **fields)
                    client.close()
                    if code_of(answer) not in RETRIED:
                        return answer
            await asyncio.sleep(0.01)


def code_of(answer: Struct) -> ErrorCode:
    """The one error code of an answer, wherever it is."""
    fields = vars(answer) if hasattr(answer, "__dict__") else {name: getattr(answer, name) for name in answer.__slots__}
    for name in ("error_code", "partition_error_code"):
        if fields.get(name):
            return ErrorCode(fields[name])
    for value in fields.values():
        if isinstance(value, list) and value and isinstance(value[0], Struct):
            return code_of(value[0])
    return NONE


class Txn:
    """One transactional id, with the group `g` that reads the topic `t`."""

    def __init__(self, brokers: Brokers, transactional_id: str = "x", *, version: int = 2) -> None:
        self.brokers = brokers
        self.transactional_id = transactional_id
        self.version = version  # transaction.version
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self) -> None:
        answer = await self.brokers.ask(
            TXN_KEY, self.transactional_id, ApiKey.INIT_PRODUCER_ID, 4,
            transactional_id=self.transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        assert answer.error_code == NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    async def add_offsets(self, group_id: str = "g") -> ErrorCode:
        answer = await self.brokers.ask(
            TXN_KEY, self.transactional_id, ApiKey.ADD_OFFSETS_TO_TXN, 3,
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            group_id=group_id,
        )  # fmt: skip
        return code_of(answer)

    async def commit_offset(self, offset: int, *, version: int | None = None, **fields: Any) -> ErrorCode:
        values = {
            "transactional_id": self.transactional_id,
            "group_id": "g",
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "topics": [offsets_of(fields.pop("topic", "t"), fields.pop("partition", 0), offset)],
        }
        default = 5 if self.version == 2 else 3
        answer = await self.brokers.ask(
            GROUP_KEY, "g", ApiKey.TXN_OFFSET_COMMIT, default if version is None else version, **{**values, **fields}
        )
        return code_of(answer)

    async def produce(self, value: bytes, *, topic: str = "t", partition: int = 0) -> ErrorCode:
        """One record; in version 1 its partition is added first."""
        if self.version == 1:
            code = await self.add_partition(topic, partition)
            if code is not NONE:
                return code
        place = (topic, partition)
        records = build_batch(
            [Record(0, int(time.time() * 1000), None, value)],
            base_offset=0,
            attributes=TRANSACTIONAL_MASK,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(place, 0),
        )
        data = [Struct(name=topic, partition_data=[Struct(index=partition, records=records)])]
        answer = await self.brokers.ask_leader(
            topic, partition, ApiKey.PRODUCE, 12 if self.version == 2 else 9,
            transactional_id=self.transactional_id, acks=-1, timeout_ms=60_000, topic_data=data,
        )  # fmt: skip
        code = code_of(answer)
        if code is NONE:
            self.sequences[place] = self.sequences.get(place, 0) + 1
        return code

    async def add_partition(self, topic: str, partition: int) -> ErrorCode:
        answer = await self.brokers.ask(
            TXN_KEY, self.transactional_id, ApiKey.ADD_PARTITIONS_TO_TXN, 3,
            v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[Struct(name=topic, partitions=[partition])],
        )  # fmt: skip
        return code_of(answer)

    async def end(self, *, is_commit: bool = True) -> ErrorCode:
        answer = await self.brokers.ask(
            TXN_KEY, self.transactional_id, ApiKey.END_TXN, 5 if self.version == 2 else 3,
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            committed=is_commit,
        )  # fmt: skip
        if self.version == 2 and answer.error_code == NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return ErrorCode(answer.error_code)


def offsets_of(topic: str, partition: int, offset: int) -> Struct:
    item = Struct(partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m")
    return Struct(name=topic, partitions=[item])
