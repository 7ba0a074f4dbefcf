import pytest

from penstock.base.types import LeaderEpoch, Offset, TopicPartition
from penstock.storage.checkpoint import (
    encode_lines,
    encode_offsets,
    read_epochs,
    read_lines,
    read_offsets,
    write_atomically,
    write_epochs,
)
from penstock.storage.fs import PosixFileSystem
from penstock.storage.partition_metadata import encode_topic_id, kafka_uuid, read_topic_id

from .support import TOPIC_ID, FailingFileSystem, Machine, fail


@pytest.fixture
def fs():
    return PosixFileSystem()


def test_offsets_are_stored_in_kafkas_format(fs, tmp_path):
    offsets = {TopicPartition("a", 0): Offset(5), TopicPartition("b-c", 12): Offset(2**40)}
    write_atomically(fs, f"{tmp_path}/c", encode_offsets(offsets))
    assert fs.read_all(f"{tmp_path}/c") == b"0\n2\na 0 5\nb-c 12 1099511627776\n"
    assert read_offsets(fs, f"{tmp_path}/c") == offsets


def test_epochs_are_stored_in_kafkas_format(fs, tmp_path):
    epochs = [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(3), Offset(77))]
    write_epochs(fs, f"{tmp_path}/c", epochs)
    assert fs.read_all(f"{tmp_path}/c") == b"0\n2\n0 0\n3 77\n"
    assert read_epochs(fs, f"{tmp_path}/c") == epochs


def test_a_missing_checkpoint_is_not_a_damaged_one(fs, tmp_path):
    assert read_offsets(fs, f"{tmp_path}/c") == {}
    assert read_lines(fs, f"{tmp_path}/c") is None
    assert read_epochs(fs, f"{tmp_path}/c") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0\n",
        b"1\n1\na 0 5\n",
        b"0\n2\na 0 5\n",
        b"0\nx\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 x\n",
        b"\xff\xfe\0",
        b"\0" * 9,
    ],
)
def test_a_damaged_checkpoint_counts_as_unknown(fs, tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    assert read_offsets(fs, f"{tmp_path}/c") is None
    assert read_epochs(fs, f"{tmp_path}/c") is None or content.startswith(b"0\n1\na")


def test_a_checkpoint_that_ends_too_early_is_damaged_wherever_that_is(fs, tmp_path):
    """Also inside its last number, where it still looks like one: a power cut tears files that are not synced."""
    path = tmp_path / "checkpoint"
    content = encode_lines(["0 0", "3 125"])
    for size in range(len(content)):
        path.write_bytes(content[:size])
        assert read_epochs(fs, str(path)) is None
    path.write_bytes(content)
    assert read_epochs(fs, str(path)) == [(0, 0), (3, 125)]


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_a_failed_write_leaves_the_old_content(tmp_path, operation):
    fs = FailingFileSystem()
    write_atomically(fs, f"{tmp_path}/c", b"old")
    fs.before, fs.write_bytes_max = fail(operation), 1
    with pytest.raises(OSError, match="space"):
        write_atomically(fs, f"{tmp_path}/c", b"new")
    assert (tmp_path / "c").read_bytes() == b"old"


def test_a_power_cut_at_any_point_leaves_the_old_or_the_new_content():
    for at in range(1, 12):
        for seed in range(5):
            machine = Machine(seed)
            machine.fs.mkdir("d")
            machine.fs.sync_dir(".")
            write_atomically(machine.fs, "d/c", b"old")
            machine.disk.cut_power_at = machine.disk.operations + at
            new_is_safe = False
            try:
                write_atomically(machine.fs, "d/c", b"new")
                new_is_safe = True
            except BaseException as killed:
                assert type(killed).__name__ == "Killed"
            assert machine.cut_power().read_all("d/c") in ((b"new",) if new_is_safe else (b"old", b"new"))


def test_a_topic_id_is_stored_as_kafka_prints_it(fs, tmp_path):
    (tmp_path / "partition.metadata").write_bytes(encode_topic_id(TOPIC_ID))
    assert (tmp_path / "partition.metadata").read_text() == f"version: 0\ntopic_id: {kafka_uuid(TOPIC_ID)}\n"
    assert kafka_uuid(TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAABw"
    assert read_topic_id(fs, str(tmp_path)) == TOPIC_ID


@pytest.mark.parametrize(
    "content", [b"", b"version: 0\n", b"topic_id: short\n", b"topic_id: " + b"!" * 22, b"\xff" * 40]
)
def test_a_damaged_topic_id_is_unknown(fs, tmp_path, content):
    assert read_topic_id(fs, str(tmp_path)) is None
    (tmp_path / "partition.metadata").write_bytes(content)
    assert read_topic_id(fs, str(tmp_path)) is None
