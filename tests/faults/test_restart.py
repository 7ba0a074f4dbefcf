"""Stopping in order and starting again: nothing lost, nothing to recover, soon done, little memory."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from . import figures
from .broker_process import BrokerProcess, running
from .load import PRODUCER, Ledger, Load, audit, create_topic, read_all, wait_until

NewBroker = Callable[..., BrokerProcess]

PARTITIONS = 1000
STARTS = 5
CLEAN_MARKER = ".kafka_cleanshutdown"
RECOVERY_LINE = "log recovered"  # What the broker logs for each log that it had to scan.


def test_sigterm_under_load_exits_in_order_and_the_next_start_has_nothing_to_recover(
    new_broker: NewBroker, verify_log: Callable[[Path], None]
) -> None:
    broker, ledger = new_broker(), Ledger()
    stop_s = []
    with running(broker):
        places = create_topic(broker.bootstrap, "large-segments", 3)
        places += create_topic(broker.bootstrap, "small-segments", 3, segment_bytes="262144")
        load = Load(broker.bootstrap, ledger, places, producers=("a", "b"), value_bytes=300)
        with load.running():
            for _ in range(3):
                time.sleep(0.7)
                stop_s.append(broker.stop())
                assert (broker.data / CLEAN_MARKER).exists()
                broker.start()
                assert RECOVERY_LINE not in broker.stderr()
        records_count = audit(ledger, read_all(broker.bootstrap, places))
        broker.stop()
        verify_log(broker.data)
    figures.note(
        "SIGTERM under load",
        f"3 times, exit code 0 within {max(stop_s):.2f} s, {ledger.acked_count:,} records acked, "
        f"{records_count:,} in the log, 0 lost, no recovery scan",
        "10 s",
    )
    assert max(stop_s) < 10


def test_recovery_scan_is_seen_by_the_test_above(new_broker: NewBroker) -> None:
    """The line whose absence proves a clean start does appear after a crash."""
    broker, ledger = new_broker(), Ledger()
    with running(broker):
        places = create_topic(broker.bootstrap, "crashed")
        with Load(broker.bootstrap, ledger, places, producers=("a",), value_bytes=300).running():
            wait_until(lambda: ledger.acked_count > 0, "a record is acked")
        broker.kill()
        assert not (broker.data / CLEAN_MARKER).exists()
        broker.start()
        assert RECOVERY_LINE in broker.stderr()


def test_broker_with_1000_partitions_starts_soon_and_is_small(new_broker: NewBroker) -> None:
    broker = new_broker()
    with running(broker):
        empty_rss = broker.rss_bytes()
        places = [
            place
            for number in range(10)
            for place in create_topic(broker.bootstrap, f"topic-{number}", PARTITIONS // 10)
        ]
        _produce_to_each(broker.bootstrap, places)
        stop_s, starts = [], []
        for _ in range(STARTS):
            stop_s.append(broker.stop())
            starts.append(broker.start())
            assert RECOVERY_LINE not in broker.stderr()
        time.sleep(1)
        idle_rss = broker.rss_bytes()
        broker.kill()
        after_crash = broker.start()
        assert sum(map(len, read_all(broker.bootstrap, places).values())) == 10 * PARTITIONS
    figures.note_starts(f"start with {PARTITIONS:,} partitions after a clean stop", starts, "< 2 s")
    figures.note(f"stop with {PARTITIONS:,} partitions", f"median {statistics.median(stop_s):.2f} s")
    figures.note_starts(f"start with {PARTITIONS:,} partitions after kill -9", [after_crash], "< 1 s")
    figures.note("memory of an empty broker", f"{empty_rss / 1e6:.0f} MB")
    figures.note(f"memory of an idle broker with {PARTITIONS:,} partitions", f"{idle_rss / 1e6:.0f} MB", "< 80 MB")
    assert idle_rss < 80e6
    assert statistics.median(start.own_s for start in starts) < 2.0  # What is promised, with 10 GB of data even.


def _produce_to_each(bootstrap: str, places: list[tuple[str, int]]) -> None:
    """Ten records to each partition, so that every one has a log to open."""
    errors = []
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "message.timeout.ms": 60_000})
    for topic, partition in places:
        for number in range(10):
            producer.produce(
                topic,
                b"a:%d:" % number,
                partition=partition,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
    assert producer.flush(90) == 0
    assert not errors, errors[:3]
