"""Readers that cost time: old data that the disk must bring, and clients that do not take what they asked for."""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from . import figures
from .broker_process import BrokerProcess, running
from .load import PRODUCER, Ledger, Load, Place, Record, audit, create_topic, read_all, wait_until
from .raw_client import connect, fetch
from .system_calls import injecting, require_strace

NewBroker = Callable[..., BrokerProcess]

OLD_BYTES = 48 << 20
PARTITIONS = 6  # Each has a cold start; from there the kernel reads ahead.
DISK_READ_S = 0.2  # A disk that is busy, or far away.
READERS = 8
PIPELINED = 60


def test_reader_of_cold_data_on_a_slow_disk_does_not_stall_a_producer(new_broker: NewBroker, tmp_path: Path) -> None:
    """Each read that waits for the disk takes 0.2 s; done on the event loop, it would hold up the producer as long."""
    require_strace()
    broker, ledger = new_broker(), Ledger()
    with running(broker):
        old = create_topic(broker.bootstrap, "old", PARTITIONS)
        fresh = create_topic(broker.bootstrap, "fresh")[0]
        with Load(broker.bootstrap, ledger, old, producers=("a",), value_bytes=5_000).running():
            wait_until(lambda: ledger.acked_count * 5_000 > OLD_BYTES, "there is old data")
        broker.stop()
        # `pread64` is how the broker waits for the disk; what it hopes to find in the cache it reads by `preadv2`.
        trace, segments = tmp_path / "strace", sorted(broker.data.glob("old-*/*.log"))
        broker.wrapper = injecting(trace, "pread64", f"delay_enter={DISK_READ_S * 1e6:.0f}", paths=segments)
        broker.start()
        for _ in range(10):
            cold_share = _drop_from_cache(segments)
            if cold_share > 0.9:
                break
            time.sleep(0.2)  # Pages that the kernel has in hand are not dropped.
        print(f"{cold_share:.0%} of the old data is not in memory")
        if cold_share < 0.5:
            pytest.skip(f"NOT TESTED: cold reads. {tmp_path} keeps {1 - cold_share:.0%} of its files in memory")
        alone_ms = _latencies_ms(broker.bootstrap, fresh, lambda count: count < 100)
        disk_reads = len(_readers(trace))
        with _in_background(lambda: read_all(broker.bootstrap, old)) as reading:
            beside_ms = _latencies_ms(broker.bootstrap, fresh, lambda count: reading.is_alive() or count < 20)
        audit(ledger, reading.result)
        readers = _readers(trace)[disk_reads:]
        disk_reads, main_thread = len(readers), broker.pid
        broker.check_log()
    figures.note(
        "acks=all latency, one record at a time",
        f"median {statistics.median(alone_ms):.1f} ms alone; {statistics.median(beside_ms):.1f} ms, max "
        f"{max(beside_ms):.0f} ms, beside a reader of {OLD_BYTES >> 20} MiB of cold data "
        f"({disk_reads} disk reads of {DISK_READ_S * 1000:.0f} ms)",
    )
    assert disk_reads >= PARTITIONS, "nothing was cold"
    # Who waited for the disk, and not how long the producer did: that depends on who else uses the machine.
    assert main_thread not in readers, f"{readers.count(main_thread)} of {disk_reads} disk reads held up the event loop"
    assert statistics.median(beside_ms) < DISK_READ_S * 1000


def test_clients_that_ask_for_much_and_read_nothing_cost_bounded_memory(new_broker: NewBroker) -> None:
    broker, ledger = new_broker(), Ledger()
    with running(broker), ExitStack() as open_sockets:
        places = create_topic(broker.bootstrap, "large")
        with Load(broker.bootstrap, ledger, places, producers=("a",), value_bytes=5_000).running():
            wait_until(lambda: ledger.acked_count * 5_000 > 8 << 20, "there is something to ask for")
        before = broker.rss_bytes()
        request = fetch(*places[0], offset=0, wait_ms=0, bytes_max=1 << 20)
        for _ in range(READERS):
            connection = open_sockets.enter_context(connect(broker.port))
            connection.sendall(request * PIPELINED)  # The answers are 60 MiB. Nobody takes them.
        latencies_ms = _latencies_ms(broker.bootstrap, places[0], lambda count: count < 100)
        growth = broker.rss_bytes() - before
        broker.check_log()
    figures.note(
        f"{READERS} clients with {PIPELINED} fetches of 1 MiB each that read nothing",
        f"{growth / 1e6:.0f} MB more memory, acks=all latency beside them: "
        f"median {statistics.median(latencies_ms):.1f} ms, max {max(latencies_ms):.0f} ms",
    )
    # Of 60 MiB for each: 4 MiB that are ready fill a connection's buffer, and as much is being made meanwhile.
    assert growth < READERS * (16 << 20)
    assert statistics.quantiles(latencies_ms, n=10)[-1] < 2_000


def _drop_from_cache(paths: list[Path]) -> float:
    """Have the kernel forget what it holds of the files; gives the share of them that is now on disk only."""
    cold = probed = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # Dirty pages are not dropped.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for position in range(0, os.fstat(descriptor).st_size, 1 << 20):
                probed += 1
                cold += _is_cold(descriptor, position)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # Looking may have brought some back.
        finally:
            os.close(descriptor)
    return cold / probed if probed else 0.0


def _is_cold(descriptor: int, position: int) -> bool:
    try:
        os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False  # A file system that does not know the flag is memory itself.
    return False


def _latencies_ms(bootstrap: str, place: Place, go_on: Callable[[int], bool]) -> list[float]:
    """Milliseconds from send to ack of one record after the other."""
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "linger.ms": 0, "message.timeout.ms": 60_000})
    errors: list[object] = []
    latencies_ms: list[float] = []
    for number in range(100_000):
        if not go_on(number):
            break
        begin = time.perf_counter()
        producer.produce(place[0], b"probe:%d:" % number, partition=place[1], on_delivery=lambda e, _: errors.append(e))
        assert producer.flush(90) == 0, "a record got neither ack nor error within 90 s"
        latencies_ms.append((time.perf_counter() - begin) * 1000)
    assert not any(errors), [error for error in errors if error][:3]
    return latencies_ms[1:]  # The first one connects.


class _Background(threading.Thread):
    def __init__(self, work: Callable[[], dict[Place, list[Record]]]) -> None:
        super().__init__()
        self._work = work
        self.result: dict[Place, list[Record]] = {}

    def run(self) -> None:
        self.result = self._work()


@contextmanager
def _in_background(work: Callable[[], dict[Place, list[Record]]]) -> Iterator[_Background]:
    thread = _Background(work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(150)
    assert thread.result, "the reader failed"


def _readers(trace: Path) -> list[int]:
    """The thread of each call that was traced; signals are, too."""
    return [int(line.split()[0]) for line in trace.read_text().splitlines() if "pread64(" in line]
