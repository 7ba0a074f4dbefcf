"""Segment files built by hand, sound and damaged in every way that `log verify` should see."""

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import typer

from penstock.cli.log import dump, verify
from penstock.cli.output import Failure
from penstock.wire.batch import Header, Record, build_batch
from penstock.wire.compression import Codec
from penstock.wire.txn_marker import EndTxnMarker, build_marker

T0 = 1_700_000_000_000


def records(first: int, count: int) -> list[Record]:
    return [
        Record(offset, T0 + offset, b"key", b"value \x1b %d" % offset, [Header("h", b"1")])
        for offset in range(first, first + count)
    ]


def write_segment(directory: Path, base_offset: int, batches: Sequence[bytes | bytearray]) -> Path:
    """A segment whose indexes have an entry for every batch but the first. Gives its log."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{base_offset:020d}.log"
    offsets, times = bytearray(), bytearray()
    position = 0
    for batch in batches:
        first, delta = struct.unpack_from(">q", batch)[0], struct.unpack_from(">i", batch, 23)[0]
        newest = struct.unpack_from(">q", batch, 35)[0]
        if position:
            offsets += struct.pack(">II", first + delta - base_offset, position)
            times += struct.pack(">qI", newest, first + delta - base_offset)
        position += len(batch)
    log.write_bytes(b"".join(batches))
    log.with_suffix(".index").write_bytes(offsets)
    log.with_suffix(".timeindex").write_bytes(times)
    return log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition with two segments of three batches each."""
    directory = tmp_path / "data" / "orders-0"
    for base_offset in (0, 30):
        write_segment(
            directory,
            base_offset,
            [
                build_batch(records(base_offset, 10), base_offset=base_offset),
                build_batch(records(base_offset + 10, 10), base_offset=base_offset + 10, codec=Codec.GZIP),
                build_batch(records(base_offset + 20, 10), base_offset=base_offset + 20, codec=Codec.ZSTD),
            ],
        )
    return directory


Verify = Callable[..., dict]


@pytest.fixture
def verified(capsys: pytest.CaptureFixture[str]) -> Verify:
    """What `log verify --json` prints; its exit code must agree."""

    def run(*paths: Path, data: Path | None = None) -> dict:
        try:
            verify(list(paths), data=data, json=True)
            code = 0
        except typer.Exit as done:
            code = done.exit_code
        verdict: dict = json.loads(capsys.readouterr().out)
        assert code == (1 if verdict["problems"] else 0)
        return verdict

    return run


def only_problem(verdict: dict) -> tuple[str, int, int | None, str]:
    (problem,) = verdict["problems"]
    assert problem["todo"]
    return Path(problem["file"]).name, problem["position"], problem["offset"], problem["what"]


def patch(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def batch_bytes(log: Path, number: int) -> tuple[int, int]:
    """Position and size of a batch."""
    content, position = log.read_bytes(), 0
    for _ in range(number):
        position += 12 + struct.unpack_from(">i", content, position + 8)[0]
    return position, 12 + struct.unpack_from(">i", content, position + 8)[0]


def test_sound_files_have_no_problems(directory: Path, verified: Verify) -> None:
    for verdict in (verified(directory), verified(data=directory.parent)):
        assert verdict == {
            "files": 6,
            "bytes": sum(path.stat().st_size for path in directory.glob("*.log")),
            "batches": 6,
            "records": 60,
            "problems_count": 0,
            "problems": [],
        }


def test_one_file_stands_for_its_segment(directory: Path, verified: Verify) -> None:
    assert verified(directory / f"{30:020d}.index")["records"] == 30


def test_flipped_bit_is_found_and_the_rest_still_checked(directory: Path, verified: Verify) -> None:
    log = directory / f"{0:020d}.log"
    position, size = batch_bytes(log, 1)
    patch(log, position + size - 1, b"!")
    verdict = verified(directory)
    assert only_problem(verdict) == (log.name, position, 10, "checksum does not match")
    assert verdict["records"] == 50


def test_offsets_that_go_back_are_found(directory: Path, verified: Verify) -> None:
    log = directory / f"{0:020d}.log"
    position, _ = batch_bytes(log, 2)
    patch(log, position, struct.pack(">q", 5))
    problem = verified(log)["problems"][0]
    assert (problem["file"], problem["position"], problem["offset"]) == (str(log), position, 5)
    assert "20 or more was due" in problem["what"]


def test_torn_tail_of_the_newest_segment_is_left_to_the_broker(directory: Path, verified: Verify) -> None:
    log = directory / f"{30:020d}.log"
    position, _ = batch_bytes(log, 2)
    log.write_bytes(log.read_bytes()[:-5])
    verdict = verified(directory)
    assert only_problem(verdict)[:3] == (log.name, position, 50)
    assert "next start" in verdict["problems"][0]["todo"]


def test_zeros_in_a_log_are_found(directory: Path, verified: Verify) -> None:
    log = directory / f"{30:020d}.log"
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(100))
    assert only_problem(verified(directory))[:3] == (log.name, size, None)


def test_segment_that_reaches_into_the_next_is_found(directory: Path, verified: Verify) -> None:
    log = write_segment(directory, 0, [build_batch(records(0, 31), base_offset=0)])
    name, _, _, what = only_problem(verified(directory))
    assert name == log.name
    assert "next segment, which begins at 30" in what


def test_index_entry_between_batches_is_found(directory: Path, verified: Verify) -> None:
    index = directory / f"{0:020d}.index"
    _, position = struct.unpack(">II", index.read_bytes()[:8])
    patch(index, 4, struct.pack(">I", position + 1))
    assert only_problem(verified(directory)) == (
        index.name,
        0,
        19,
        f"byte {position + 1} of the log is not the start of a batch",
    )


def test_index_that_would_skip_records_is_found(directory: Path, verified: Verify) -> None:
    index = directory / f"{0:020d}.index"
    patch(index, 0, struct.pack(">I", 9))
    assert "already at offset 10" in only_problem(verified(directory))[3]


def test_index_beyond_the_log_is_found(directory: Path, verified: Verify) -> None:
    index = directory / f"{30:020d}.index"
    index.write_bytes(index.read_bytes() + struct.pack(">II", 40, 1_000_000))
    assert only_problem(verified(directory))[:3] == (index.name, 16, 70)


def test_index_that_does_not_increase_is_found(directory: Path, verified: Verify) -> None:
    index = directory / f"{0:020d}.index"
    index.write_bytes(index.read_bytes()[:8] * 2)
    assert "does not come after" in only_problem(verified(directory))[3]


def test_half_an_entry_is_found(directory: Path, verified: Verify) -> None:
    index = directory / f"{0:020d}.timeindex"
    index.write_bytes(index.read_bytes() + b"\0")
    assert only_problem(verified(directory)) == (index.name, 24, None, "the file ends in half an entry")


def test_time_index_that_goes_back_is_found(directory: Path, verified: Verify) -> None:
    index = directory / f"{0:020d}.timeindex"
    patch(index, 12, struct.pack(">q", T0 - 1))
    assert "does not come after" in only_problem(verified(directory))[3]


def test_time_index_that_would_skip_records_is_found(directory: Path, verified: Verify) -> None:
    index = directory / f"{0:020d}.timeindex"
    patch(index, 0, struct.pack(">q", T0 + 15))
    assert only_problem(verified(directory))[3] == f"a message before offset 19 has time {T0 + 19}, not {T0 + 15}"


def test_index_without_a_log_is_found(directory: Path, verified: Verify) -> None:
    (directory / f"{30:020d}.log").unlink()
    assert [problem["what"] for problem in verified(directory)["problems"]] == ["there is no log for this index"] * 2


def test_indexes_that_kafka_allocated_ahead_are_sound(directory: Path, verified: Verify) -> None:
    for index in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        index.write_bytes(index.read_bytes() + bytes(24 * 10_000))
    assert verified(directory)["problems"] == []


def test_empty_segment_is_sound(tmp_path: Path, verified: Verify) -> None:
    write_segment(tmp_path / "t-0", 0, [])
    assert verified(tmp_path / "t-0")["problems"] == []


def test_problems_as_a_table_say_where_and_what_to_do(
    directory: Path, verified: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    log = directory / f"{0:020d}.log"
    patch(log, log.stat().st_size - 1, b"!")
    with pytest.raises(typer.Exit):
        verify([directory])
    table = capsys.readouterr().out
    assert f"{log}  " in table
    assert "checksum does not match" in table
    assert "Otherwise readers have to go on at offset 30." in table
    assert table.endswith("1 problem.\n")


def test_nothing_to_look_at_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no segment files"):
        verify([tmp_path])
    with pytest.raises(Failure, match="There is no"):
        dump([tmp_path / "missing"])
    (tmp_path / "notes.log").touch()
    with pytest.raises(Failure, match="is no segment file"):
        dump([tmp_path / "notes.log"])


def test_dump_shows_batches_records_and_indexes(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump([directory], records=True)
    text = capsys.readouterr().out
    assert "0-9" in text
    assert "gzip" in text
    assert "value \\x1b 59" in text  # Escaped: the file may hold anything.
    assert text.count("POSITION") == 4
    assert text.count("TIMESTAMP") == 2


def test_dump_as_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump([directory / f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")], records=True, json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    batches = lines[:3]
    assert [batch["codec"] for batch in batches] == ["none", "gzip", "zstd"]
    assert [record["offset"] for batch in batches for record in batch["records"]] == list(range(30))
    assert batches[0]["records"][0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": T0,
        "key": "key",
        "value": "value \x1b 0",
        "headers": [{"key": "h", "value": "1"}],
    }
    assert [(line["offset"], line["position"]) for line in lines[3:5]] == [
        (19, batches[1]["position"]),
        (29, batches[2]["position"]),
    ]
    assert [(line["timestamp"], line["offset"]) for line in lines[5:]] == [(T0 + 19, 19), (T0 + 29, 29)]


def test_dump_goes_on_after_damage_and_fails_at_the_end(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = directory / f"{0:020d}.log"
    patch(log, 70, b"!")
    with pytest.raises(Failure, match="1 part of these files"):
        dump([log], records=True)
    text = capsys.readouterr().out
    assert "checksum does not match" in text
    assert "20-29" in text


def test_transactions_are_shown_and_their_indexes_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verified: Verify
) -> None:
    markers = [
        build_marker(
            EndTxnMarker(offset == 1, 3),
            base_offset=offset,
            leader_epoch=0,
            producer_id=7,
            producer_epoch=0,
            timestamp=T0 + offset,
        )
        for offset in (1, 2)
    ]
    log = write_segment(tmp_path / "orders-0", 0, [build_batch(records(0, 1), base_offset=0), *markers])
    log.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 2, 3))
    dump([log.parent], records=False)
    text = capsys.readouterr().out
    assert ", commit" in text
    assert ", abort" in text
    dump([log, log.with_suffix(".txnindex")], records=False, json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("control") for line in lines[:3]] == [None, "commit", "abort"]
    del lines[3]["file"]
    assert lines[3:] == [{"producer_id": 7, "first_offset": 0, "last_offset": 2, "last_stable_offset": 3}]
    assert verified(log.parent)["problems"] == []
    log.with_suffix(".txnindex").write_bytes(bytes(35))
    assert len(verified(log.parent)["problems"]) == 1
