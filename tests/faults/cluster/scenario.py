"""One scenario: the standard load, a fault under it, everything healed, and the verdict on what was seen."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.sim.checkers import Contents, Violation

from .. import figures
from ..load import read_all
from .broker_cluster import BrokerCluster
from .timed_history import log_of
from .verdict import Verdict, batches_of, check_replicas, judge
from .workload import Workload

REPLICAS = 3
SETTLE_S_MAX = 60  # After all is healed: all in sync, all acked, all read, all replicas the same.


class Scenario:
    """What a test may look at when the scenario is over."""

    def __init__(self, name: str, workload: Workload) -> None:
        self.name = name
        self.workload = workload
        self.verdict = Verdict()
        self.notes: list[str] = []  # Further figures, of the fault itself.

    @property
    def topic(self) -> str:
        return self.workload.topic


@contextmanager
def scenario(
    cluster: BrokerCluster,
    name: str,
    directory: Path,
    *,
    promise: str = "",
    bootstrap: str | None = None,
    replicas: int = REPLICAS,
    **topic_config: str,
) -> Iterator[Scenario]:
    """The load runs inside the block, on a topic with this config (underscores for dots).

    Afterwards all is healed, and checked against the invariants A to I.
    """
    cluster.heal()
    cluster.forget_logs()
    topic = name.split()[0].lower() + f"-{time.time_ns() // 1_000_000 % 10**9}"
    workload = Workload(bootstrap or cluster.bootstrap, topic)
    workload.create_topic(replicas, **topic_config)
    cluster.wait_until_in_sync(topic)
    run = Scenario(name, workload)
    begin = time.monotonic()
    try:
        with workload.running():
            yield run
            cluster.heal()
            workload.wait_for_acks()
            healed_at = time.monotonic()
        in_sync_s = cluster.wait_until_in_sync(topic, SETTLE_S_MAX)
        workload.wait_until_read(SETTLE_S_MAX)
        settled_s = time.monotonic() - healed_at
        workload.stop_reading()
        run.verdict = verdict_of(cluster, workload)
    except BaseException:
        workload.abandon()
        workload.history.write(directory / f"{topic}.jsonl")
        raise
    workload.history.write(directory / f"{topic}.jsonl")
    notes = [*run.notes, f"in sync {in_sync_s:.1f} s and read {settled_s:.1f} s after all was healed"]
    figures.note(name, f"{run.verdict.summary()}; {'; '.join(notes)}; {time.monotonic() - begin:.0f} s", promise)
    if workload.errors:
        print(f"{len(workload.errors)} errors that clients were told, e.g. {sorted(set(workload.errors))[:5]}")
    run.verdict.check()


def verdict_of(cluster: BrokerCluster, workload: Workload) -> Verdict:
    places = [(workload.topic, partition) for partition in range(workload.partitions)]
    found = read_all(cluster.bootstrap, places)
    contents: Contents = {log_of(*place): records for place, records in found.items()}
    verdict = judge(*workload.history.snapshot(), contents, workload.seen)
    ends = {place: records[-1][0] + 1 if records else 0 for place, records in found.items()}
    verdict.violations += _differences(cluster, ends)
    verdict.violations += [Violation("crash", log_of(workload.topic, 0), text) for text in cluster.crashes()]
    return verdict


def _differences(cluster: BrokerCluster, ends: dict[tuple[str, int], int]) -> list[Violation]:
    """H: what differs for good. All that was acked is on all replicas already; their last bytes may be on the way."""
    deadline = time.monotonic() + SETTLE_S_MAX
    topics = {topic for topic, _ in ends}
    assigned = {topic: cluster.partitions(topic) for topic in topics}
    while True:
        different = []
        for (topic, partition), end in ends.items():
            replicas = {
                node_id: batches_of(cluster[node_id].data / f"{topic}-{partition}")
                for node_id in assigned[topic][partition].replicas
            }
            different += check_replicas(log_of(topic, partition), replicas, end)
        if not different or time.monotonic() > deadline:
            return different
        time.sleep(0.5)
