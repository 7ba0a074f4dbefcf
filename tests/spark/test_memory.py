"""A task's memory does not grow with its partition: that of a Python process of real Spark, measured from outside."""

import os
import re
from pathlib import Path

from spark_cluster import below, command_of

RECORD_BYTES = 10_000
SMALL_COUNT = 1_600  # 16 MB: two of the largest replies.
LARGE_COUNT = 10 * SMALL_COUNT
GROWTH_BYTES_MAX = 40 << 20  # A quarter of the large partition.


def peak_bytes_of_tasks() -> int:
    """The most that any of Spark's Python processes has held since `forget_peaks`."""
    return max(_peak_bytes(pid) for pid in _python_processes())


def forget_peaks() -> None:
    for pid in _python_processes():
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _python_processes() -> list[int]:
    return [pid for pid in below(os.getpid()) if "pyspark.daemon" in command_of(pid)]


def _peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0  # None: it has just ended.


def test_ten_times_the_partition_takes_the_same_memory(load, penstock_broker, produce):
    peaks = []
    for count in (SMALL_COUNT, LARGE_COUNT):
        topic = penstock_broker.create_topic()
        produce(topic, [(0, None, bytes(RECORD_BYTES), 0, [])] * count)
        frame = load("penstock", subscribe=topic).selectExpr("count(*)", "sum(length(value))")
        frame.collect()  # The processes are there now, and stay for the next query.
        forget_peaks()
        assert tuple(frame.collect()[0]) == (count, count * RECORD_BYTES)
        peaks.append(peak_bytes_of_tasks())
    small, large = peaks
    print(f"{small >> 20} MB for {SMALL_COUNT * RECORD_BYTES >> 20} MB, {large >> 20} MB for ten times as much")
    # A process that can read has numpy, Arrow and a reply in memory: less, and it was not measured.
    assert small > 50 << 20
    assert large < small + GROWTH_BYTES_MAX
