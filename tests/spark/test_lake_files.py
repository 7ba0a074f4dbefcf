"""Rows into Parquet files and back: nothing lost, in order, whatever the days, sizes and number of files."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.spark import lake_files
from penstock.spark.lake_files import COMPRESSIONS, LakeWriter, compression_of, merged, read_range

DAY_US = 86_400_000_000


def batch(rows: list[tuple]) -> pa.RecordBatch:
    """Of (topic, partition, offset, timestamp in µs, key, value, headers), in the order that the source has."""
    columns = list(zip(*rows, strict=True))
    return pa.record_batch(
        {
            "key": pa.array(columns[4], pa.binary()),
            "value": pa.array(columns[5], pa.binary()),
            "topic": pa.array(columns[0], pa.string()),
            "partition": pa.array(columns[1], pa.int32()),
            "offset": pa.array(columns[2], pa.int64()),
            "timestamp": pa.array(columns[3], pa.timestamp("us", tz="Europe/Berlin")),
            "timestampType": pa.array([0] * len(rows), pa.int32()),
            "headers": pa.array(columns[6], lake_files.SCHEMA.field("headers").type),
        }
    )


def read_all(root, files, topic, partition, start=0, end=1 << 60) -> list[tuple]:
    mine = [file for file in files if file.topic == topic]
    found = []
    for each in read_range(root, mine, partition, start, end):
        columns = (each[name].to_pylist() for name in ("offset", "key", "value", "headers"))
        timestamps = each["timestamp"].cast(pa.int64()).to_pylist()
        found += zip(*columns, timestamps, strict=True)
    return found


maybe_bytes = st.none() | st.binary(max_size=4)
headers = st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": maybe_bytes}), max_size=2)


@st.composite
def topics(draw):
    """Records of partitions: offsets ascend with gaps, timestamps go anywhere within a few days, also before 1970."""
    rows = []
    for topic in ("orders", "7")[: draw(st.integers(1, 2))]:
        for partition in range(draw(st.integers(1, 3))):
            offset = 0
            for _ in range(draw(st.integers(0, 12))):
                offset += draw(st.integers(1, 3))
                timestamp = draw(st.integers(-2 * DAY_US, 2 * DAY_US)) // 1000 * 1000
                rows.append((topic, partition, offset, timestamp, draw(maybe_bytes), draw(maybe_bytes), draw(headers)))
    return rows


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(topics(), st.data())
def test_what_goes_in_comes_out_in_order(tmp_path_factory, rows, data):
    root = tmp_path_factory.mktemp("lake")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_files, "BUFFER_BYTES", data.draw(st.sampled_from([1, 300, 1 << 20])))
        patch.setattr(lake_files, "ROW_GROUP_BYTES", data.draw(st.sampled_from([1, 100, 1 << 20])))
        patch.setattr(lake_files, "FILE_BYTES", data.draw(st.sampled_from([1, 600, 1 << 20])))
        patch.setattr(lake_files, "WRITERS_MAX", data.draw(st.sampled_from([1, 32])))
        patch.setattr(lake_files, "READ_ROWS_MAX", data.draw(st.sampled_from([1, 3, 1000])))
        is_shuffled = data.draw(st.booleans())
        given_rows = data.draw(st.permutations(rows)) if is_shuffled else rows
        compression = data.draw(st.sampled_from(COMPRESSIONS))
        writer = LakeWriter(root, "f-{}.parquet", compression)
        while given_rows:
            count = data.draw(st.integers(1, len(given_rows)))
            writer.write(batch(given_rows[:count]))
            given_rows = given_rows[count:]
        files = writer.close()
        assert sum(file.rows for file in files) == len(rows)
        assert {str(path.relative_to(root)) for path in root.rglob("*.parquet")} == {file.path for file in files}
        check(root, files, rows)
        assert {compression_of(root, file) for file in files} <= {compression}
        if len({(file.topic, file.day) for file in files}) == 1:
            check(root, [merged(root, files, like=files[-1])], rows)


def check(root, files, rows) -> None:
    for topic in ("orders", "7"):
        for partition in range(3):
            mine = [row for row in rows if row[:2] == (topic, partition)]
            expected = [(row[2], row[4], row[5], row[6], row[3]) for row in mine]
            assert read_all(root, files, topic, partition) == expected
            assert read_all(root, files, topic, partition, 3, 9) == [row for row in expected if 3 <= row[0] < 9]
    for file in files:
        mine = [row for row in rows if row[0] == file.topic and day(row[3]) == file.day]
        for span in file.spans:
            offsets = [row[2] for row in mine if row[1] == span.partition]
            assert span.first in offsets and span.last in offsets


def day(timestamp_us: int) -> str:
    return (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=timestamp_us)).date().isoformat()


def test_a_task_that_fails_leaves_nothing(tmp_path):
    writer = LakeWriter(tmp_path, "f-{}.parquet")
    writer.write(batch([("orders", 0, number, number * DAY_US, b"k", b"v", None) for number in range(40)]))
    writer.discard()
    assert not list(tmp_path.rglob("*.parquet"))
