"""kill -9 under full load, again and again."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from . import figures
from .broker_process import BrokerProcess, Start, running
from .load import Ledger, Load, audit, create_topic, read_all, wait_until

KILLS = 20


def test_no_acked_record_is_lost_doubled_or_moved_by_20_kills_under_full_load(
    new_broker: Callable[..., BrokerProcess], verify_log: Callable[[Path], None]
) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    broker, ledger = new_broker(), Ledger()
    starts: list[Start] = []
    begin = time.monotonic()
    with running(broker):
        places = create_topic(broker.bootstrap, "large-segments", 3)
        places += create_topic(broker.bootstrap, "small-segments", 3, segment_bytes="262144")
        load = Load(broker.bootstrap, ledger, places, producers=("a", "b"), value_bytes=300)
        with load.running():
            for _ in range(KILLS):
                acked_before = ledger.acked_count
                time.sleep(draw.uniform(0.2, 0.7))
                wait_until(lambda before=acked_before: ledger.acked_count > before, "a record is acked")
                broker.kill()
                starts.append(broker.start())
        records_count = audit(ledger, read_all(broker.bootstrap, places))
        broker.kill()
    segments = len(list(broker.data.glob("small-segments-*/*.log")))
    verify_log(broker.data)

    figures.note(
        "kill -9 under full load",
        f"{KILLS} times, {ledger.acked_count:,} records acked, {records_count:,} in the log, 0 lost, 0 twice, "
        f"{segments} segments, {time.monotonic() - begin:.0f} s ({seed=})",
        "no acked record lost",
    )
    figures.note_starts("start after kill -9, producers hammering", starts, "< 1 s")
    assert segments > 3 * KILLS / 2, "the small segments did not roll"
    assert statistics.median(start.own_s for start in starts) < 1.0
