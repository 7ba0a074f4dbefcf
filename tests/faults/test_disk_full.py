"""The disk fills up under load, and gets space again."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from penstock.storage.segment import RESERVE_BYTES_MAX

from . import figures
from .broker_process import BrokerProcess, running
from .full_disk import SmallDisk, small_disk
from .load import Ledger, Load, Place, Record, audit, create_topic, delete_topic, produce_one, read_all, wait_until

DISK_BYTES = 64 << 20
METADATA_BYTES = 80 << 10  # Room for a commit of the metadata store.
PROBE_BYTES = 100_000
RESUME_S_MAX = 30  # What is promised; it takes milliseconds.
PATIENT = {"message.timeout.ms": 60_000}  # A record that nobody refuses is not given up.
NewBroker = Callable[..., BrokerProcess]
VerifyLog = Callable[[Path], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    with small_disk(mount_point, DISK_BYTES) as disk:
        yield disk


def test_full_disk_is_a_storage_error_to_producers_and_nothing_to_readers(
    disk: SmallDisk, new_broker: NewBroker, verify_log: VerifyLog
) -> None:
    ballast = disk.fill("ballast", leave_bytes=24 << 20)
    broker, ledger = new_broker(data=disk.inside / "data", wrapper=disk.enter), Ledger()
    resume_s = []
    with running(broker):
        places = create_topic(broker.bootstrap, "large-segments", 2)
        places += create_topic(broker.bootstrap, "small-segments", 2, segment_bytes="262144")
        load = Load(broker.bootstrap, ledger, places, producers=("a",), value_bytes=1000, queued_max=500, **PATIENT)
        with load.running():
            for number in range(3):
                errors = ledger.errors[KafkaError.KAFKA_STORAGE_ERROR]
                wait_until(
                    lambda before=errors: ledger.errors[KafkaError.KAFKA_STORAGE_ERROR] > before + 100,
                    "producers hear of the full disk",
                )
                records = read_all(broker.bootstrap, places)
                assert all(records.values()), "readers go on while the disk is full"
                acked, freed_at = ledger.acked_count, time.monotonic()
                ballast.unlink()
                wait_until(lambda before=acked: ledger.acked_count > before + 1000, "writes resume", RESUME_S_MAX)
                resume_s.append(time.monotonic() - freed_at)
                if number < 2:
                    ballast = disk.fill("ballast", leave_bytes=2 << 20)
        audit(ledger, read_all(broker.bootstrap, places))
        broker.check_log()
        broker.kill()
        verify_log(disk.outside / "data")
        broker.start()
        records_count = audit(ledger, read_all(broker.bootstrap, places))
        broker.stop()
    assert set(ledger.errors) == {KafkaError.KAFKA_STORAGE_ERROR}
    figures.note(
        "disk full under load, freed again",
        f"3 times, {ledger.acked_count:,} records acked, {sum(ledger.errors.values()):,} refused, "
        f"{records_count:,} in the log, 0 lost; writes resumed within {max(resume_s):.2f} s, without a restart",
        "no acked record lost",
    )


def test_deleting_a_topic_makes_room_for_writes(disk: SmallDisk, new_broker: NewBroker, verify_log: VerifyLog) -> None:
    broker, ledger = new_broker(data=disk.inside / "data", wrapper=disk.enter), Ledger()
    with running(broker):
        reserve = disk.take("reserve", METADATA_BYTES)
        kept, doomed = create_topic(broker.bootstrap, "kept", 2), create_topic(broker.bootstrap, "doomed", 2)
        _fill_by_producing(broker, ledger, kept + doomed)
        disk.fill("ballast")
        _fill_reserved_space(broker, kept[0])
        reserve.unlink()
        begin = time.monotonic()
        delete_topic(broker.bootstrap, "doomed")
        wait_until(lambda: _produce(broker, kept[0]) is None, "writes resume", RESUME_S_MAX)
        figures.note("topic deleted on a full disk", f"writes resumed after {time.monotonic() - begin:.2f} s")
        for place in doomed:
            ledger.acked.pop(place, None)
        audit(ledger, _without_probes(read_all(broker.bootstrap, kept)))
        broker.stop()
        verify_log(disk.outside / "data")


def test_sigterm_on_a_full_disk_ends_the_broker_in_order(disk: SmallDisk, new_broker: NewBroker) -> None:
    broker, ledger = new_broker(data=disk.inside / "data", wrapper=disk.enter), Ledger()
    with running(broker):
        reserve = disk.take("reserve", 1 << 20)
        places = create_topic(broker.bootstrap, "full", 2)
        _fill_by_producing(broker, ledger, places)
        disk.fill("ballast")
        broker.stop()
        reserve.unlink()
        broker.start()
        audit(ledger, read_all(broker.bootstrap, places))


def test_broker_starts_on_a_disk_without_a_free_byte_and_serves_reads(disk: SmallDisk, new_broker: NewBroker) -> None:
    broker, ledger = new_broker(data=disk.inside / "data", wrapper=disk.enter), Ledger()
    with running(broker):
        places = create_topic(broker.bootstrap, "full", 2)
        _fill_by_producing(broker, ledger, places)
        disk.fill("ballast")
        broker.kill()
        broker.start()
        audit(ledger, read_all(broker.bootstrap, places))
        disk.fill("what the start gave up")
        assert _produce(broker, places[0]) == KafkaError.KAFKA_STORAGE_ERROR


def test_topic_can_be_deleted_on_a_disk_without_a_free_byte(disk: SmallDisk, new_broker: NewBroker) -> None:
    broker, ledger = new_broker(data=disk.inside / "data", wrapper=disk.enter), Ledger()
    with running(broker):
        places = create_topic(broker.bootstrap, "full", 2)
        _fill_by_producing(broker, ledger, places)
        disk.fill("ballast")
        delete_topic(broker.bootstrap, "full")


def _fill_by_producing(broker: BrokerProcess, ledger: Ledger, places: list[Place]) -> None:
    with Load(broker.bootstrap, ledger, places, producers=("a",), value_bytes=5000).running():
        wait_until(lambda: ledger.errors[KafkaError.KAFKA_STORAGE_ERROR] > 100, "producers hear of the full disk")


def _fill_reserved_space(broker: BrokerProcess, place: Place) -> None:
    """A partition on a full disk takes what still fits into the space that it has reserved, and then nothing."""
    for _ in range(RESERVE_BYTES_MAX // PROBE_BYTES + 1):
        if _produce(broker, place) == KafkaError.KAFKA_STORAGE_ERROR:
            return
    pytest.fail("a full disk takes more than a partition can have reserved")


def _produce(broker: BrokerProcess, place: Place) -> int | None:
    """Error code of one record; large, so that it does not fit into the last pages of the disk."""
    error = produce_one(broker.bootstrap, place, b"probe:0:" + b"x" * PROBE_BYTES)
    return None if error is None else error.code()


def _without_probes(records: dict[Place, list[Record]]) -> dict[Place, list[Record]]:
    return {place: [r for r in found if not r[1].startswith(b"probe")] for place, found in records.items()}
