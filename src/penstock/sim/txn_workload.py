"""Producers that write in transactions, die in the middle of them and are replaced; readers of what is committed."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import TypeVar

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import LinkLost, NoReply, SimClient
from penstock.sim.cluster_workload import RECOVERY_S, RETRIABLE, RETRY_S, UNREADABLE
from penstock.sim.group_requests import fetch_offsets
from penstock.sim.network import SimNetwork
from penstock.sim.router import Router
from penstock.sim.trace import Trace
from penstock.sim.txn_history import Outcome, Records, Txn, TxnHistory
from penstock.sim.txn_requests import (
    GROUP,
    TRANSACTION,
    Committed,
    Identity,
    add_offsets,
    add_partition,
    commit_offset,
    end_txn,
    fetch_committed,
    find_coordinator,
    init_producer_id,
    produce,
)
from penstock.sim.txn_scenario import Step, TxnScenario
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch

R = TypeVar("R")

LONG_S = 900.0  # A transaction's timeout that no run comes to.
IDLE_POLLS_MAX = 600  # At the end, of one partition: a minute for its last transaction to be decided.

# The coordinator is another, or will answer in a moment.
_ASK_AGAIN = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.unknown_topic_or_partition,  # The image of a broker that has just started.
    ErrorCode.kafka_storage_error,
}
_WRITE_AGAIN = RETRIABLE | {ErrorCode.concurrent_transactions, ErrorCode.not_coordinator}


@dataclass
class Seat:
    """One process that writes under a transactional id."""

    name: str
    who: Identity
    bumps: bool  # Of transaction.version 2.
    may_be_refused: bool  # Its transactions may take too long, or another has taken its place.
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def become(self, who: Identity) -> None:
        if who != self.who:
            self.who = who
            self.sequences.clear()


class TxnWorkload:
    def __init__(
        self,
        *,
        scenario: TxnScenario,
        network: SimNetwork,
        clock: Clock,
        trace: Trace,
        partitions: Sequence[TopicPartition],
        on_step: Callable[[Step, int], None],
    ) -> None:
        """`on_step` is told before each request of a producer which kind it is, and which broker gets it."""
        self.history = TxnHistory()
        self.complaints: list[str] = []
        self.must_serve_by = inf  # Known when everything has healed.
        self._scenario = scenario
        self._network = network
        self._clock = clock
        self._trace = trace
        self._partitions = list(partitions)
        self._on_step = on_step
        self._links = itertools.count(1)
        self._zombies: list[Awaitable[None]] = []
        self._copiers: list[str] = []  # Those that commit offsets of a group, too.

    def _router(self, name: str) -> Router:
        random = Random(f"router-{name}-{self._scenario.seed}")
        return Router(self._network, range(1, self._scenario.cluster.brokers + 1), random, self._links)

    # Writing

    async def write(self, number: int) -> None:
        """Transactions, one after the other, by processes that may not live to the end of theirs."""
        scenario, name = self._scenario, f"tx-{number}"
        random = Random(f"{name}-{scenario.seed}")
        router = self._router(name)
        bumps = random.random() < scenario.bumping_rate
        timeout_s = scenario.timeout_s if random.random() < 0.3 else LONG_S
        copies = random.random() < scenario.copier_rate
        if copies:
            self._copiers.append(name)
        seat: Seat | None = None
        for count in range(scenario.transactions):
            await asyncio.sleep(scenario.cluster.think_s * random.random())
            if seat is None:
                who = await self._try(partial(self._init, router, name, timeout_s), f"initialising {name}")
                if who is None:
                    return
                # A coordinator whose clock was set counts the age of what it takes over by that, as Kafka's does.
                may_take_too_long = timeout_s < LONG_S or scenario.has_wrong_clocks
                seat = Seat(name, who, bumps, may_be_refused=may_take_too_long)
            txn = Txn(name, count)
            self.history.transactions.append(txn)
            is_written = await self._fill(router, seat, txn, random)
            if copies and is_written:
                is_written = await self._commit_offset(router, seat, txn)
            self._trace.add("transaction", name, count, is_written)
            if is_written is None:
                return
            if random.random() < scenario.death_rate:
                if random.random() < 0.5 and is_written:
                    # It is not dead, only slow: it wants to commit when another has taken its place.
                    txn.outcome = Outcome.UNKNOWN
                    seat.may_be_refused = True
                    self._zombies.append(
                        asyncio.create_task(self._end_late(self._router(f"zombie-{name}-{count}"), seat, txn, random))
                    )
                seat = None
            elif not is_written:
                seat.may_be_refused = True  # It was, already.
                await self._end(router, seat, txn, is_commit=False)
                seat = None  # As a client that cannot tell what of its records is there.
            elif random.random() < scenario.handover_rate:
                seat = await self._hand_over(router, seat, txn, is_commit=random.random() < 0.7)
            elif not await self._end(router, seat, txn, is_commit=random.random() < 0.7):
                seat = None
        router.close()

    async def _end_late(self, router: Router, seat: Seat, txn: Txn, random: Random) -> None:
        await asyncio.sleep(random.choice((0.0, 0.05, 1.0)))
        await self._end(router, seat, txn, is_commit=True)
        router.close()

    async def _init(self, router: Router, name: str, timeout_s: float, keeps: bool = False) -> Identity | None:
        answer = await self._ask_coordinator(
            router, name, Step.INIT, lambda client: init_producer_id(client, name, timeout_s=timeout_s, keeps=keeps)
        )
        if answer is None or answer[0] in _ASK_AGAIN:
            return None
        if answer[0] is not ErrorCode.none:
            self.complaints.append(f"initialising {name}: {answer[0].name}")
        return answer[1]

    async def _fill(self, router: Router, seat: Seat, txn: Txn, random: Random) -> bool | None:
        """Whether all its records are acknowledged; None when the cluster does not come back."""
        chosen = random.sample(self._partitions, random.randint(1, len(self._partitions)))
        for number, partition in enumerate(random.choices(chosen, k=len(chosen) + 1)):
            value = f"{txn.producer}-{txn.number}-{number}".encode()
            if not seat.bumps:
                added = await self._try(partial(self._add, router, seat, partition), f"adding {partition}")
                if not added:
                    return added
            values = txn.values.setdefault(partition, [])
            values.append(value)
            batch = self._batch(seat, partition, value)
            sent = await self._try(partial(self._send, router, seat, partition, batch), f"writing to {partition}")
            if not sent:
                return sent
            seat.sequences[partition] = seat.sequences.get(partition, 0) + 1
        return True

    async def _add(self, router: Router, seat: Seat, partition: TopicPartition) -> bool | None:
        code = await self._ask_coordinator(
            router, seat.name, Step.ADD, lambda client: add_partition(client, seat.name, seat.who, partition)
        )
        return None if code is None or code in _ASK_AGAIN else self._is_taken(seat, code, f"adding {partition}")

    async def _commit_offset(self, router: Router, seat: Seat, txn: Txn) -> bool | None:
        """As `_fill`, for how far the producer's group has come."""
        group, what = f"g-{seat.name}", f"committing offsets of {seat.name}"

        async def add() -> bool | None:
            code = await self._ask_coordinator(
                router, seat.name, Step.ADD, lambda client: add_offsets(client, seat.name, seat.who, group)
            )
            return None if code is None or code in _ASK_AGAIN else self._is_taken(seat, code, what)

        async def commit() -> bool | None:
            code = await self._ask_coordinator(
                router,
                group,
                Step.OFFSETS,
                lambda client: commit_offset(
                    client, seat.name, seat.who, group, self._partitions[0], txn.number + 1, adds=seat.bumps
                ),
                GROUP,
            )
            return None if code is None or code in _ASK_AGAIN else self._is_taken(seat, code, what)

        if not seat.bumps:
            added = await self._try(add, what)
            if not added:
                return added
        committed = await self._try(commit, what)
        if committed:
            txn.offset = txn.number + 1
        return committed

    async def _send(self, router: Router, seat: Seat, partition: TopicPartition, batch: bytearray) -> bool | None:
        found = await router.leader(partition)
        if found is None:
            return None
        leader, client = found
        self._on_step(Step.PRODUCE, leader.broker)
        try:
            code = await produce(client, seat.name, partition, bytearray(batch), adds=seat.bumps)
        except (LinkLost, NoReply):
            client.abort()
            router.doubt()
            return None
        if code in _WRITE_AGAIN:
            router.doubt()
            return None
        return self._is_taken(seat, code, f"writing to {partition}")

    def _is_taken(self, seat: Seat, code: ErrorCode, what: str) -> bool:
        """Whether the answer is not a refusal. One to a producer that has done nothing wrong is a problem."""
        if code is not ErrorCode.none and not seat.may_be_refused:
            self.complaints.append(f"{seat.name} as {seat.who} was refused {what}: {code.name}")
        return code is ErrorCode.none

    def _batch(self, seat: Seat, partition: TopicPartition, value: bytes) -> bytearray:
        return build_batch(
            [Record(0, self._clock.now_ms(), None, value)],
            base_offset=0,
            leader_epoch=-1,
            attributes=TRANSACTIONAL_MASK,
            producer_id=seat.who.producer_id,
            producer_epoch=seat.who.epoch,
            base_sequence=seat.sequences.get(partition, 0),
        )

    # Ends

    async def _end(self, router: Router, seat: Seat, txn: Txn, *, is_commit: bool) -> bool:
        """Whether the process can go on. What is known of the end is noted in the transaction."""
        if is_commit:
            txn.outcome = Outcome.UNKNOWN
        is_sure = True  # That nothing which was asked for before has been done.
        while True:
            answer = await self._ask_coordinator(
                router,
                seat.name,
                Step.END,
                lambda client: end_txn(client, seat.name, seat.who, is_commit=is_commit, bumps=seat.bumps),
            )
            if answer is not None and answer[0] not in _ASK_AGAIN:
                break
            # CONCURRENT_TRANSACTIONS comes before anything is decided, or after: then it is decided so.
            is_sure = is_sure and answer is not None and answer[0] is ErrorCode.coordinator_load_in_progress
            if asyncio.get_running_loop().time() > self.must_serve_by:
                self.complaints.append(f"not served {RECOVERY_S} s after everything healed: ending {txn}")
                return False
            await asyncio.sleep(RETRY_S)
        code, who = answer
        self._trace.add("ended", txn.producer, txn.number, is_commit, code.name)
        if code is ErrorCode.none:
            txn.outcome = Outcome.COMMITTED if is_commit else Outcome.ABORTED
            seat.become(who)
            return True
        if is_commit and is_sure:
            txn.outcome = Outcome.ABORTED
        return self._is_taken(seat, code, f"ending {txn}")

    async def _hand_over(self, router: Router, seat: Seat, txn: Txn, *, is_commit: bool) -> Seat | None:
        """Another process takes the transaction over and ends it, twice; gives who may go on (KIP-939)."""
        who = await self._try(partial(self._init, router, seat.name, LONG_S, keeps=True), f"handing over {seat.name}")
        if who is None:
            return None
        taker = Seat(seat.name, who, seat.bumps, seat.may_be_refused)
        if not await self._end(router, taker, txn, is_commit=is_commit):
            return None
        again = Txn(txn.producer, txn.number, txn.values, txn.outcome)
        if await self._end(router, Seat(seat.name, who, seat.bumps, may_be_refused=False), again, is_commit=is_commit):
            assert again.outcome is txn.outcome, "the same request has got another answer"
        return None  # Its timeout is not that of a producer.

    # Asking

    async def _ask_coordinator(
        self,
        router: Router,
        name: str,
        step: Step,
        request: Callable[[SimClient], Awaitable[R]],
        kind: int = TRANSACTION,
    ) -> R | None:
        """The answer of the transactional id's coordinator, or the group's; None when there is none."""
        broker = await router.ask(lambda client: find_coordinator(client, name, kind))
        if broker is None:
            return None
        self._on_step(step, broker)
        return await router.ask(request, broker)

    async def _try(self, attempt: Callable[[], Awaitable[R | None]], what: str) -> R | None:
        """Try until it works; when it does not for too long after everything has healed, complain and give None."""
        while (result := await attempt()) is None:
            if asyncio.get_running_loop().time() > self.must_serve_by:
                self.complaints.append(f"not served {RECOVERY_S} s after everything healed: {what}")
                return None
            await asyncio.sleep(RETRY_S)
        return result

    # Reading

    async def follow(self, number: int) -> None:
        """Read what is committed, from the start and then as it grows, until cancelled."""
        random = Random(f"committed-{self._scenario.seed}-{number}")
        router = self._router(f"reader-{number}")
        positions: dict[TopicPartition, int] = {}
        while True:
            await asyncio.sleep(self._scenario.cluster.think_s * random.random())
            partition = random.choice(self._partitions)
            position = positions.get(partition, 0)
            start = random.randint(0, position) if random.random() < 0.2 else position
            reply = await self._poll(router, partition, start, random.choice((0, 200)))
            if reply is not None:
                positions[partition] = max(position, reply.next_offset)

    async def _poll(self, router: Router, partition: TopicPartition, start: int, wait_ms: int) -> Committed | None:
        found = await router.leader(partition)
        if found is None:
            return None
        leader, client = found
        try:
            reply = await fetch_committed(client, partition, start, wait_ms=wait_ms, leader_epoch=leader.epoch)
        except (LinkLost, NoReply):
            client.abort()
            router.doubt()
            return None
        if reply.error is not ErrorCode.none:
            router.doubt()
            if reply.error not in UNREADABLE:
                self.complaints.append(f"fetch of {partition} at {start} from {leader}: {reply.error.name}")
            return None
        if reply.last_stable_offset > reply.high_watermark or any(
            offset >= reply.last_stable_offset for offset, _ in reply.records
        ):
            self.complaints.append(f"{partition} shows more than is stable: {reply}")
        self.history.on_shown(partition, reply.records)
        return reply

    # The end: everything has healed and stays so.

    async def finish(self) -> dict[TopicPartition, Records]:
        """Take every transactional id over, which decides what is open, and read what is committed."""
        await asyncio.gather(*self._zombies)
        router = self._router("auditor")
        for number in range(1, self._scenario.producers + 1):
            name = f"tx-{number}"
            await self._try(partial(self._init, router, name, LONG_S), f"initialising {name} at the end")
        final: dict[TopicPartition, Records] = {}
        for partition in self._partitions:
            final[partition] = await self._read_all(router, partition)
        for name in self._copiers:
            offset = await self._try(partial(self._offset_of, router, f"g-{name}"), f"offsets of {name}")
            if offset is not None:
                self.history.offsets[name] = offset
        router.close()
        return final

    async def _offset_of(self, router: Router, group: str) -> int | None:
        partition = self._partitions[0]
        found = await self._ask_coordinator(
            router, group, Step.OFFSETS, lambda client: fetch_offsets(client, group, partition.topic, 1), GROUP
        )
        return found[partition] if isinstance(found, dict) else None

    async def _read_all(self, router: Router, partition: TopicPartition) -> Records:
        records: list[tuple[int, bytes]] = []
        position = 0
        for _ in range(IDLE_POLLS_MAX):
            reply = await self._try(partial(self._poll, router, partition, position, 0), f"reading {partition}")
            if reply is None:
                return records
            records += reply.records
            position = max(position, reply.next_offset)
            if position >= reply.high_watermark:
                return records
            if reply.next_offset <= position and not reply.records:
                await asyncio.sleep(RETRY_S)  # The last marker is on its way.
        self.complaints.append(f"{partition} is not decided from {position} on")
        return records
