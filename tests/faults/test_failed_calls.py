"""System calls that are slow or fail.

An ack waits for the sync; after a failed sync nobody is promised anything; after a failed write all goes on.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from . import figures
from .broker_process import BrokerProcess, running
from .load import PRODUCER, Ledger, Load, audit, create_topic, produce_one, read_all, wait_until
from .raw_client import connect, fetch, receive
from .system_calls import injected_at, injecting, require_strace

NewBroker = Callable[..., BrokerProcess]
VerifyLog = Callable[[Path], None]

STORAGE_ERROR = KafkaError.KAFKA_STORAGE_ERROR
SLOW_SYNC_S = 1.0
RECORDS = 30
# Without them threads sync, by calls that strace can see; tests/storage has the other ways.
KERNEL_SYNCS = "io_uring_setup,io_setup"
IN_FLIGHT_S = 2.0  # From the broker's decision to the producer's callback, on a busy machine.


def test_record_is_neither_acked_nor_shown_before_it_is_synced(new_broker: NewBroker, tmp_path: Path) -> None:
    require_strace()
    broker = new_broker()
    with running(broker):
        synced = create_topic(broker.bootstrap, "synced")[0]
        assert produce_one(broker.bootstrap, synced, b"before") is None
        broker.stop()
        broker.wrapper = injecting(
            tmp_path / "strace", "fdatasync", f"delay_enter={SLOW_SYNC_S * 1e6:.0f}", absent=KERNEL_SYNCS
        )
        broker.start()
        settings = {"linger.ms": 0, "max.in.flight": 50, "message.timeout.ms": 60_000}
        producer = Producer({**PRODUCER, "bootstrap.servers": broker.bootstrap, **settings})
        outcomes: list[tuple[KafkaError | None, float]] = []
        begin = time.monotonic()
        for _ in range(RECORDS):
            producer.produce(
                synced[0],
                b"slowly",
                partition=synced[1],
                on_delivery=lambda error, _: outcomes.append((error, time.monotonic() - begin)),
            )
            producer.flush(0.005)  # Each record in a request of its own, all under way together.
        wait_until(lambda: b"slowly" in (broker.data / "synced-0" / f"{0:020}.log").read_bytes(), "the write")
        with connect(broker.port) as reader:
            reader.sendall(fetch(*synced, offset=0, wait_ms=0))
            shown = receive(reader)
            shown_s = time.monotonic() - begin
        assert producer.flush(90) == 0
        broker.check_log()
    acked_s = [seconds for error, seconds in outcomes if error is None]
    assert len(acked_s) == RECORDS, outcomes
    assert b"before" in shown
    assert b"slowly" not in shown or shown_s > SLOW_SYNC_S, "a reader was shown a record that was not synced"
    assert min(acked_s) >= SLOW_SYNC_S, "an ack came before the sync was done"
    assert max(acked_s) < RECORDS * SLOW_SYNC_S / 2, "records that came during one sync did not share the next"
    figures.note(
        f"{RECORDS} requests while fdatasync takes {SLOW_SYNC_S:.0f} s",
        f"the first acked after {min(acked_s):.2f} s, the last after {max(acked_s):.2f} s",
        "acked means synced",
    )


@pytest.mark.parametrize("times", ["once", "from then on"])
def test_reliability_rule_17_no_ack_ever_comes_after_a_failed_sync(
    times: str, new_broker: NewBroker, verify_log: VerifyLog, tmp_path: Path
) -> None:
    """`once`: the calls after it succeed, as Linux does it after it has dropped the pages (fsyncgate)."""
    require_strace()
    trace, ledger = tmp_path / "strace", Ledger()
    broker = new_broker()
    with running(broker):
        places = create_topic(broker.bootstrap, "synced", 3)
        places += create_topic(broker.bootstrap, "small-segments", 1, segment_bytes="262144")
        broker.stop()
        broker.wrapper = injecting(
            trace, "fdatasync", f"error=EIO:when={'40' if times == 'once' else '40+'}", absent=KERNEL_SYNCS
        )
        broker.start()
        load = Load(broker.bootstrap, ledger, places, producers=("a", "b"), value_bytes=1000, queued_max=1000)
        with load.running():
            wait_until(lambda: ledger.errors[STORAGE_ERROR] > 1000, "producers hear of the failed sync")
            time.sleep(IN_FLIGHT_S + 1)  # Long enough for a broker that goes on to ack to be seen doing it.
        failed_at = injected_at(trace)[0]
        late_s = ledger.last_ack_at - failed_at
        assert ledger.acked_count > 1000
        assert late_s < IN_FLIGHT_S, f"{late_s:.3f} s after the failed sync a record was acked"

        acked_count = ledger.acked_count
        for place in places:
            error = produce_one(broker.bootstrap, place, b"probe:0:")
            assert error is not None, f"{place} acked a record after the failed sync"
            assert error.code() == STORAGE_ERROR
        new_place = create_topic(broker.bootstrap, "made-afterwards")[0] if times == "once" else places[0]
        error = produce_one(broker.bootstrap, new_place, b"probe:0:")
        assert error is not None, "a topic made after the failed sync acked a record"
        assert error.code() == STORAGE_ERROR
        while_failed = read_all(broker.bootstrap, places)
        audit(ledger, while_failed)
        broker.check_log()

        broker.kill()
        broker.wrapper = []
        broker.start()
        records = read_all(broker.bootstrap, places)
        records_count = audit(ledger, records)
        for place, seen in while_failed.items():
            assert records[place][: len(seen)] == seen, f"{place}: what a reader saw while failed has changed"
        assert produce_one(broker.bootstrap, places[0], b"probe:0:") is None
        broker.stop()
        verify_log(broker.data)
    figures.note(
        f"fdatasync fails ({times})",
        f"{acked_count:,} records acked before, last callback {late_s * 1000:+.0f} ms from the failure, "
        f"{ledger.errors[STORAGE_ERROR]:,} refused after, {records_count:,} in the log after a restart, 0 lost",
        "no ack after a failed sync",
    )


@pytest.mark.parametrize("error_name", ["ENOSPC", "EIO"])
def test_failed_write_is_refused_and_leaves_no_trace(
    error_name: str, new_broker: NewBroker, verify_log: VerifyLog, tmp_path: Path
) -> None:
    require_strace()
    trace, ledger = tmp_path / "strace", Ledger()
    broker = new_broker()
    with running(broker):
        places = create_topic(broker.bootstrap, "written", 2)
        broker.stop()
        segments = [broker.data / f"{topic}-{partition}" / f"{0:020}.log" for topic, partition in places]
        # Every third write fails, on the log's files alone: sockets are written with the same call.
        broker.wrapper = injecting(trace, "writev,write", f"error={error_name}:when=2+3", paths=segments)
        broker.start()
        load = Load(broker.bootstrap, ledger, places, producers=("a", "b"), value_bytes=1000, queued_max=1000)
        with load.running():
            wait_until(lambda: ledger.errors[STORAGE_ERROR] > 1000 and ledger.acked_count > 1000, "both outcomes")
        audit(ledger, read_all(broker.bootstrap, places))
        broker.check_log()
        broker.kill()
        verify_log(broker.data)
        broker.wrapper = []
        broker.start()
        records_count = audit(ledger, read_all(broker.bootstrap, places))
        broker.stop()
    assert injected_at(trace)
    assert records_count == ledger.acked_count, "a record that was refused is in the log"
    figures.note(
        f"writes fail with {error_name}, every third",
        f"{ledger.acked_count:,} records acked, {ledger.errors[STORAGE_ERROR]:,} refused, {records_count:,} in the log",
    )
