"""What each promise of delivery costs with our Python client, on Penstock and on Kafka.

    python -m bench.delivery

Publishing: messages a second, from the first to the last answer. Handling: a second group of messages is read, each is
published to another topic, and both count once, at least once, or at most once. Delay: from publishing a message until
a reader that waits has it, one at a time. Prints a table in Markdown, for docs/python-client.md.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice
from pathlib import Path

import penstock
from bench.brokers import Broker, Kafka, Penstock
from penstock.client import Connection

MESSAGES = 20_000
SMALL_MESSAGES = 300  # In transactions of one message, or committed one by one.
DELAYS = 100
VALUE = b"x" * 100

Row = tuple[float, float, float]  # Published a second, handled a second, median delay in ms.


def publish(connection: Connection, topic: str, delivery: str, count: int, batch: int = 0) -> float:
    """Messages a second; in transactions of `batch` of them, if that is not 0."""
    begun = time.perf_counter()
    for start in range(0, count, batch or count):
        with connection.transaction() if batch else nullcontext():
            for _ in range(start, min(count, start + (batch or count))):
                connection.publish(topic, VALUE, delivery=delivery)
    connection.flush()
    return count / (time.perf_counter() - begun)


def handle(connection: Connection, source: str, target: str, delivery: str, count: int, batch: int) -> float:
    """Messages a second, without the time that joining the group takes."""
    begun = 0.0
    reader: AbstractContextManager = (
        connection.process(source, group="handlers", batch=batch)
        if batch
        else connection.subscribe(source, group="handlers", delivery=delivery)
    )
    with reader as messages:
        for message in islice(messages, count):
            begun = begun or time.perf_counter()
            connection.publish(target, message.value, delivery=None if batch else delivery)
    connection.flush()
    return count / (time.perf_counter() - begun)


def delay_ms(connection: Connection, topic: str, delivery: str, batch: int) -> float:
    """The median, from one thread that does both: nothing else is under way."""
    took = []
    with connection.subscribe(topic, group="readers", start="latest", delivery=delivery) as messages:
        while not messages.receive(1):  # Until it has begun to read.
            connection.publish(topic, VALUE, delivery="at-least-once").result()
        while messages.receive(0.5):
            pass
        for _ in range(DELAYS):
            begun = time.perf_counter()
            with connection.transaction() if batch else nullcontext():
                connection.publish(topic, VALUE, delivery=delivery)
            assert messages.receive(60) is not None, "it does not arrive"
            took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


MODES: list[tuple[str, str, int]] = [
    ("at most once", "at-most-once", 0),
    ("at least once", "at-least-once", 0),
    ("exactly once, 1,000 messages a transaction", "exactly-once", 1000),
    ("exactly once, 100 messages a transaction", "exactly-once", 100),
    ("exactly once, 1 message a transaction", "exactly-once", 1),
]


def measure(broker: Broker, delivery: str, batch: int, name: str) -> Row:
    count = SMALL_MESSAGES if batch == 1 or delivery == "at-most-once" else MESSAGES
    with (
        closing(penstock.connect(broker.bootstrap, settings={"linger.ms": 0})) as prompt,
        closing(penstock.connect(broker.bootstrap)) as connection,
        broker.topic(f"source-{name}") as source,
        broker.topic(f"target-{name}") as target,
        broker.topic(f"delay-{name}") as delayed,
    ):
        with connection.transaction():  # Nobody's first transaction is measured.
            connection.publish(delayed, VALUE)
        publish(connection, delayed, delivery, 100, batch)
        published = publish(connection, source, delivery, MESSAGES if batch != 1 else SMALL_MESSAGES, batch)
        handled = handle(connection, source, target, delivery, count, batch)
        return published, handled, delay_ms(prompt, delayed, delivery, batch)


def main(out: Callable[[str], object] = print) -> int:
    kinds: list[type[Broker]] = [Penstock, Kafka]
    rows: dict[str, list[Row]] = {label: [] for label, _, _ in MODES}
    with tempfile.TemporaryDirectory() as directory:
        for kind in kinds:
            with kind(Path(directory)) as broker:
                for number, (label, delivery, batch) in enumerate(MODES):
                    rows[label].append(measure(broker, delivery, batch, str(number)))
                    print(kind.name, label, *(f"{figure:.3g}" for figure in rows[label][-1]), file=sys.stderr)
    out("| promise | published/s | handled/s | delay ms |")
    out("|---|---|---|---|")
    for label, per_kind in rows.items():
        figures = [" / ".join(f"{row[column]:,.{0 if column < 2 else 1}f}" for row in per_kind) for column in range(3)]
        out(f"| {label} | {' | '.join(figures)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
