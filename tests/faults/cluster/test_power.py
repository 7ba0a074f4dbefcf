"""Power cuts: brokers are killed, and their disks lose what was not synced."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat.missing_parts import skip_when_missing

from .. import figures
from ..load import PRODUCER, create_topic, read_all, wait_until
from .broker_cluster import BROKERS, Broker, BrokerCluster, broker_cluster, drawn
from .leader_probe import LeaderProbe, lost, overlap_s
from .lossy_disk import Loss, lossy_disk
from .scenario import REPLICAS, scenario, verdict_of
from .workload import PARTITIONS, Workload

CUTS = 3
ACKED_MIN = 25_000
ATTEMPTS_MAX = 5
VOLATILE_COUNT = 1_000  # Records a cut, to a topic whose owner has opted out of syncs.

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def seed() -> int:
    """Of all that is drawn here, also of what the disks lose."""
    return random.randrange(2**32)


@pytest.fixture(scope="module", params=[0, 1 << 20], ids=["alone", "journal"])
def journal_bytes(request: pytest.FixtureRequest) -> int:
    """With and without a journal, which is so small that its halves are used again and again."""
    return int(request.param)


@pytest.fixture(scope="module")
def lossy_cluster(tmp_path_factory: pytest.TempPathFactory, seed: int, journal_bytes: int) -> Iterator[BrokerCluster]:
    """ZooKeeper has power of its own."""
    directory = tmp_path_factory.mktemp("power")
    with ExitStack() as stack:
        disks = {}
        for node_id in range(1, BROKERS + 1):
            with skip_when_missing("FUSE, for power cuts"):
                disks[node_id] = stack.enter_context(lossy_disk(directory / f"disk-{node_id}", seed + node_id))
        config = {"penstock.journal.bytes": str(journal_bytes)}
        yield stack.enter_context(broker_cluster(directory, disks=disks, config=config))


class VolatileRecords:
    """Records of a topic with penstock.durability=os: acked when they are written, lost by a power cut."""

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self._cluster = cluster
        # So many that a disk which keeps all of their files by chance is none that we will see.
        self._places = create_topic(cluster.bootstrap, topic, PARTITIONS, REPLICAS, penstock_durability="os")
        self._acked: set[bytes] = set()
        cluster.wait_until_in_sync(topic)

    def send(self) -> None:
        producer = Producer({**PRODUCER, "bootstrap.servers": self._cluster.bootstrap, "message.timeout.ms": 60_000})
        begin = len(self._acked)
        for number in range(begin, begin + VOLATILE_COUNT):
            topic, partition = self._places[number % PARTITIONS]
            producer.produce(topic, b"%d" % number, partition=partition, on_delivery=self._on_delivery)
        assert producer.flush(90) == 0
        assert len(self._acked) == begin + VOLATILE_COUNT, "not all were acked"

    def _on_delivery(self, error: object, message: object) -> None:
        if error is None:
            self._acked.add(message.value())  # type: ignore[attr-defined]

    def report(self) -> str:
        records = read_all(self._cluster.bootstrap, self._places)
        found = {value for of_place in records.values() for _, value in of_place}
        lost_count = len(self._acked - found)
        return f"with penstock.durability=os {lost_count:,} of {len(self._acked):,} acked records lost"


def test_r4_power_is_cut_on_all_brokers_at_once(
    lossy_cluster: BrokerCluster, histories: Path, seed: int, journal_bytes: int
) -> None:
    cluster, draw = lossy_cluster, random.Random(seed)
    promise = "A=0, C=0; without syncs loss is possible"
    with scenario(cluster, f"R4 power cut on all brokers, {CUTS} times", histories, promise=promise) as run:
        volatile = VolatileRecords(cluster, f"volatile-{run.topic}")
        losses, serving = [], []
        for _ in range(CUTS):
            time.sleep(draw.uniform(0.5, 2))
            volatile.send()
            losses.append(cluster.cut_power())
            begin = time.monotonic()
            cluster.start(drawn(draw, cluster.brokers))
            run.workload.wait_for_acks()
            serving.append(time.monotonic() - begin)
            cluster.wait_until_in_sync(run.topic)
            cluster.wait_until_in_sync(f"volatile-{run.topic}")
        run.notes += [str(Loss.sum(losses)), volatile.report()]
        run.notes.append(f"serving after {max(serving):.1f} s at most ({seed=})")
    assert all(loss.lost_bytes > 0 for loss in losses), "a power cut that lost nothing shows nothing"
    if journal_bytes:
        logs = "".join(broker.whole_log() for broker in cluster.brokers)
        assert "records restored from the journal" in logs, "nobody needed the journal"


def test_rule_17_a_leader_whose_syncs_fail_promises_nothing_more(lossy_cluster: BrokerCluster, histories: Path) -> None:
    """The kernel carries the syncs out, so nobody but the disk can make them fail."""
    cluster = lossy_cluster
    with scenario(
        cluster, "rule 17: the leader's syncs fail, and its power is cut", histories, promise="A, C=0"
    ) as run:
        failing = cluster.leader(run.topic)
        is_by_kernel = "[aio]" in Path(f"/proc/{failing.pid}/maps").read_text()
        disk = cluster.disks[failing.node_id]
        disk.fail_syncs()
        begin = time.monotonic()
        next_leader = cluster.leader(run.topic, not_=[failing])
        run.workload.wait_for_acks()
        taken_over_s = time.monotonic() - begin
        loss = cluster.cut_power([failing])
        disk.mend_syncs()
        failing.start()
        cluster.wait_until_in_sync(run.topic)
        run.notes += [str(loss), f"syncs by {'the kernel' if is_by_kernel else 'threads'}"]
        run.notes.append(f"broker {next_leader.node_id} led after {taken_over_s:.1f} s")


def test_r5_the_one_whose_power_was_cut_is_first_to_lead(
    lossy_cluster: BrokerCluster, histories: Path, seed: int
) -> None:
    """The others sleep meanwhile, and wake up as leaders of the past."""
    cluster = lossy_cluster
    with scenario(cluster, "R5 power cut on one broker, which leads next", histories, promise="A, C, H=0") as run:
        volatile = VolatileRecords(cluster, f"volatile-{run.topic}")
        probed = f"probe-{run.topic}"
        place = create_topic(cluster.bootstrap, probed, 1, REPLICAS)[0]
        losses, answers = [], []
        for _ in range(ATTEMPTS_MAX):
            for topic in (run.topic, probed):
                cluster.wait_until_in_sync(topic)
            old = cluster.leader(probed)
            first = next(broker for broker in cluster.brokers if broker is not old)
            others = [broker for broker in cluster.brokers if broker is not first]
            probe = LeaderProbe(probed, cluster.brokers)
            with probe.running():
                wait_until(lambda p=probe, b=old: _takes_writes(p, b), "the leader takes writes")
                volatile.send()
                for broker in others:
                    broker.pause()
                losses.append(cluster.cut_power([first]))
                begin = time.monotonic()
                first.start()
                leads_all = _wait_until_it_leads(cluster, first, (run.topic, probed))
                leads_s = time.monotonic() - begin
                for broker in others:
                    broker.resume()
                run.workload.wait_for_acks()
                if leads_all:
                    wait_until(lambda p=probe, b=first: _takes_writes(p, b), "the new leader takes writes")
                cluster.wait_until_in_sync(probed)
            answers += probe.answers
            if leads_all:
                break
        assert leads_all, f"it was not in sync with all partitions in any of {ATTEMPTS_MAX} attempts"
        assert overlap_s(probe.answers, old.node_id) == 0
        wait_until(lambda: run.workload.acked_count >= ACKED_MIN, "enough is acked")
        run.notes += [str(Loss.sum(losses)), volatile.report()]
        run.notes.append(
            f"it led all after {leads_s:.1f} s, overlap 0 ms, "
            f"{sum(answer.code == 0 for answer in answers):,} of {len(answers):,} probes taken "
            f"({seed=}, {len(losses)} attempts)"
        )
        assert lost(answers, read_all(cluster.bootstrap, [place])[place]) == []
    assert all(loss.lost_bytes > 0 for loss in losses), "a power cut that lost nothing shows nothing"


def _takes_writes(probe: LeaderProbe, broker: Broker) -> bool:
    return any(answer.code == 0 and answer.node_id == broker.node_id for answer in probe.answers)


def _wait_until_it_leads(cluster: BrokerCluster, broker: Broker, topics: Sequence[str]) -> bool:
    """Wait until the broker, the only one awake, leads what it was in sync with, and nobody the rest: was that all?

    On a busy machine it may have been out of sync with some partitions when its power was cut.
    """

    def states() -> list[tuple[int, bool]]:
        partitions = [p for topic in topics for p in cluster.partitions(topic, broker).values()]
        return [(p.leader, broker.node_id in p.isrs) for p in partitions]

    wait_until(
        lambda: all(leader == (broker.node_id if is_in_sync else -1) for leader, is_in_sync in states()),
        "it leads what it was in sync with",
    )
    return all(is_in_sync for _, is_in_sync in states())


def test_what_is_acked_before_it_is_synced_is_found_to_be_lost(lossy_cluster: BrokerCluster, seed: int) -> None:
    """The control: the same load, disks and verdict as in R4, on a topic that does not wait for syncs."""
    cluster = lossy_cluster
    cluster.heal()
    cluster.forget_logs()
    workload = Workload(cluster.bootstrap, f"control-{time.time_ns()}", readers=False)
    workload.create_topic(REPLICAS, penstock_durability="os")
    cluster.wait_until_in_sync(workload.topic)
    with workload.running():
        time.sleep(2)
    loss = cluster.cut_power()
    cluster.start()
    cluster.wait_until_in_sync(workload.topic)
    verdict = verdict_of(cluster, workload)
    counts = verdict.counts()
    figures.note(
        "control: power cut on all brokers, penstock.durability=os",
        f"{verdict.acked_count:,} acked, A={counts['A']:,} H={counts['H']} I={counts['I']}; {loss} ({seed=})",
        "loss is possible, and found",
    )
    assert counts["A"] > 0, "the check does not find what a power cut takes"
    assert counts["H"] == counts["I"] == 0
