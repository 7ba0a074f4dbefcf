"""How a broker's cost grows with what it has to keep: the same load on more partitions, or over more connections.

Each step is the first one's load to the byte, so that only the number grows. Three loads go to the partitions:

prebuilt    the same requests at every step, one batch in each, to one partition after the other: what the broker costs
in batches  Kafka's producer as it is: it fills a batch of one partition before it turns to the next
spread      Kafka's producer with every record to another partition, as keys do: batches get smaller, and more
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from bench.raw_load import RawClient, produce_frame
from bench.workloads import Figures, Stage, Workload

CONNECTIONS = (1, 100, 1_000)
REQUEST_RECORDS = 16  # Of 1 KB: what fills the producer's default batch.
IN_FLIGHT = 5
ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"

# At every step, and three for each of a thousand partitions: a first batch makes files, which Penstock syncs in the
# background, and a second one the first entry of an index, which took Kafka 36 s of CPU for a thousand new partitions.
# Neither is what a record costs.
WARM_UP_REQUESTS = 3_000

Load = Callable[[str, int], float]  # CPU µs that a record costs in a topic of so many partitions.


def growth(name: str, numbers: Sequence[int], costs_us: Sequence[float]) -> Figures:
    """The cost at every step, and how often the last one's is the first one's."""
    steps = {f"{name}, {number:,}": cost_us for number, cost_us in zip(numbers, costs_us, strict=True)}
    return steps | {f"{name}, {numbers[-1]:,} by {numbers[0]}": costs_us[-1] / costs_us[0]}


def _more_partitions(workload: Workload, stage: Stage) -> Figures:
    numbers = stage.scale.partitions
    loads = {"prebuilt": _prebuilt(workload, stage), "in batches": _client(workload, stage)}
    loads["spread"] = _client(workload, stage, partitioner_class=ROUND_ROBIN)
    # The first step is done twice and counted once: else it alone would pay for what the JVMs compile during it.
    costs_us = [_costs_us(workload, stage, loads, number) for number in [numbers[0], *numbers]][1:]
    figures: Figures = {}
    for name, of_load in zip(loads, zip(*costs_us, strict=True), strict=True):
        figures |= growth(f"{name}: CPU µs", numbers, of_load)
    return figures


def _costs_us(workload: Workload, stage: Stage, loads: dict[str, Load], partitions: int) -> list[float]:
    """What a record of each load costs in a topic of so many partitions."""
    with stage.broker.topic(f"{stage.topic}-{partitions}", partitions=partitions) as topic:
        _send_prebuilt(workload, stage, topic, partitions, WARM_UP_REQUESTS)
        stage.broker.settle()
        return [load(topic, partitions) for load in loads.values()]


def _prebuilt(workload: Workload, stage: Stage) -> Load:
    requests = workload.count(stage.scale.megabytes / 6) // REQUEST_RECORDS

    def cost_us(topic: str, partitions: int) -> float:
        cpu = stage.broker.cpu_laps()
        _send_prebuilt(workload, stage, topic, partitions, requests)
        return cpu.lap_s() * 1e6 / (requests * REQUEST_RECORDS)

    return cost_us


def _send_prebuilt(workload: Workload, stage: Stage, topic: str, partitions: int, requests: int) -> None:
    frames = [
        produce_frame(topic, partition=number, record_bytes=workload.record_bytes, records=REQUEST_RECORDS)
        for number in range(partitions)
    ]
    with closing(RawClient(stage.broker.port)) as client:
        client.produce(itertools.islice(itertools.cycle(frames), requests), IN_FLIGHT)


def _client(workload: Workload, stage: Stage, **settings: str) -> Load:
    count, record_bytes = workload.count(stage.scale.megabytes / 6), workload.record_bytes

    def cost_us(topic: str, partitions: int) -> float:
        cpu = stage.broker.cpu_laps()
        stage.load.produce(stage.broker.bootstrap, topic, count=count, record_bytes=record_bytes, **settings)
        return cpu.lap_s() * 1e6 / count

    return cost_us


def _more_connections(workload: Workload, stage: Stage) -> Figures:
    """One request at a time, each over another connection: every one of them wakes the broker up, at every step."""
    frame = produce_frame(stage.topic, record_bytes=workload.record_bytes, records=1)
    costs_us = [_request_cost_us(stage, frame, number) for number in [CONNECTIONS[0], *CONNECTIONS]][1:]
    return growth("CPU µs", CONNECTIONS, costs_us)


def _request_cost_us(stage: Stage, frame: bytes, connections: int) -> float:
    requests = max(2_000, stage.scale.megabytes * 8)  # CPU time is counted in hundredths of a second.
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(RawClient(stage.broker.port))) for _ in range(connections)]
        turns = itertools.cycle(clients)
        for client in itertools.islice(turns, max(CONNECTIONS)):
            client.produce([frame])
        cpu = stage.broker.cpu_laps()
        for client in itertools.islice(turns, requests):
            client.produce([frame])
        return cpu.lap_s() * 1e6 / requests


GROWTH_WORKLOADS = [
    Workload("a request's cost with more connections", _more_connections, record_bytes=100),
    Workload("a record's cost with more partitions", _more_partitions, is_quick=False),
]
