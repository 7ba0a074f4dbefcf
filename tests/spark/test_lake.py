"""What a lake holds: batches once, all of them, whatever is merged and in which order writers come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark import lake as lakes
from penstock.spark.lake import FILE_BYTES, LakeFile, Overlap, Snapshot, Span
from penstock.spark.lake_store import LakeStore, file_stem, is_of_batch


def a_file(name="a", *spans, topic="orders", day="2026-11-16", size=1000) -> LakeFile:
    return LakeFile(topic, day, name, 10, size, tuple(Span(*each) for each in spans))


@st.composite
def histories(draw):
    """Batches of an archive: of each partition some offsets from where the last one ended, with gaps."""
    position = {partition: draw(st.integers(0, 5)) for partition in range(draw(st.integers(1, 3)))}
    batches = []
    for number in range(draw(st.integers(1, 12))):
        files, start = [], dict(position)
        for partition in position:
            for day in range(draw(st.integers(0, 2))):
                first = start[partition] + draw(st.integers(0, 3))
                last = first + draw(st.integers(0, 5))
                size = draw(st.integers(1, FILE_BYTES * 2))
                files.append(a_file(f"{number}-{partition}-{day}", (partition, first, last), day=str(day), size=size))
                position[partition] = max(position[partition], last + 1)
            position[partition] += draw(st.integers(0, 3))  # Aborted, or compacted away.
        batches.append((files, {("orders", partition): end for partition, end in position.items()}))
    return batches


def archived(batches, *, query="q", is_merged=False) -> Snapshot:
    lake = Snapshot()
    for number, (files, ends) in enumerate(batches):
        lake = lakes.add_batch(lake, query, number, files, ends)
        if is_merged:
            for count, group in enumerate(lakes.merges(lake)):
                lake = lakes.replace_files(lake, group, joined(group, f"m-{number}-{count}"), now_ms=number)
    return lake


def joined(group, name) -> LakeFile:
    bounds: dict[int, list[int]] = {}
    for each in group:
        for span in each.spans:
            bounds.setdefault(span.partition, []).extend([span.first, span.last])
    spans = tuple(Span(partition, min(found), max(found)) for partition, found in sorted(bounds.items()))
    return LakeFile(group[0].topic, group[0].day, name, sum(f.rows for f in group), sum(f.bytes for f in group), spans)


@given(histories())
def test_a_batch_counts_once_whoever_brings_it_again(batches):
    lake = archived(batches)
    for number, (files, ends) in enumerate(batches):
        assert lakes.add_batch(lake, "q", number, files, ends) is lake
    assert lake.ends == batches[-1][1]
    assert sorted(lake.files) == sorted(file for files, _ in batches for file in files)


@given(histories())
def test_the_lake_ends_where_its_last_batch_was_read_up_to_also_behind_the_last_row(batches):
    lake = archived(batches)
    for key, end in batches[-1][1].items():
        assert lake.ends[key] == end
        assert all(span.last < end for file in lake.files for span in file.spans if ("orders", span.partition) == key)


@given(histories())
def test_without_a_note_of_where_a_batch_ended_the_rows_tell(batches):
    lake = archived([(files, {}) for files, _ in batches])
    for file in lake.files:
        for span in file.spans:
            assert span.last < lake.ends["orders", span.partition]


@given(histories())
def test_records_that_are_there_are_refused_from_another_query(batches):
    lake = archived(batches)
    if lake.files:
        with pytest.raises(Overlap, match="up to offset"):
            lakes.add_batch(lake, "another", 0, lake.files[:1], {})


@given(histories(), st.integers(0, 60), st.integers(1, 60))
def test_all_files_of_a_range_are_found_merged_or_not(batches, start, size):
    wanted = set(range(start, start + size))
    for lake in (archived(batches), archived(batches, is_merged=True)):
        for partition in range(3):
            found = set(lake.files_with("orders", partition, start, start + size))
            for file in lake.files:
                spans = [span for span in file.spans if span.partition == partition]
                has = any(wanted & set(range(span.first, span.last + 1)) for span in spans)
                assert has == (file in found)


@given(histories())
def test_merging_keeps_rows_and_bounds_the_number_of_files(batches):
    plain, lake = archived(batches), archived(batches, is_merged=True)
    assert sum(file.rows for file in plain.files) == sum(file.rows for file in lake.files)
    assert lake.ends == plain.ends and lake.starts() == plain.starts()
    assert {each.path for each in lake.retired}.isdisjoint(each.path for each in lake.files)
    for day in {file.day for file in lake.files}:
        small = [file for file in lake.files if file.day == day and file.bytes < FILE_BYTES // 2]
        # Three sizes below half of a whole file, and of each some that do not fit together.
        assert len(small) <= 3 * 2 * lakes.GROWTH


def test_a_thousand_small_batches_are_a_few_files_and_few_rows_are_written_often():
    lake, written = Snapshot(), 0
    for number in range(1000):
        files = [a_file(f"f-{number}", (0, number * 10, number * 10 + 9), size=100_000)]
        lake = lakes.add_batch(lake, "q", number, files, {})
        for group in lakes.merges(lake):
            new = joined(group, f"m-{number}")
            written += new.bytes
            lake = lakes.replace_files(lake, group, new, number)
    assert len(lake.files) <= 3 * lakes.GROWTH
    assert written <= 4 * 1000 * 100_000


@given(histories())
def test_a_snapshot_is_the_same_after_a_trip_through_its_file(batches):
    lake = archived(batches, is_merged=True)
    assert lakes.from_json(lakes.to_json(lake)) == lake


def test_a_merge_of_files_that_are_gone_is_dropped():
    lake = lakes.add_batch(Snapshot(), "q", 0, [a_file("a", (0, 0, 1)), a_file("b", (0, 2, 3))], {})
    merged = lakes.replace_files(lake, lake.files, a_file("m", (0, 0, 3)), now_ms=5)
    assert [each.name for each in merged.files] == ["m"]
    assert lakes.replace_files(merged, lake.files, a_file("n", (0, 0, 3)), now_ms=6) is merged
    assert lakes.forget_retired(merged, before_ms=5) is merged
    assert not lakes.forget_retired(merged, before_ms=6).retired


def test_two_writers_both_get_in_one_after_the_other(tmp_path):
    one, two = LakeStore(str(tmp_path)), LakeStore(f"file://{tmp_path}")
    assert one.latest() == Snapshot()

    def meanwhile(lake: Snapshot) -> Snapshot:
        if lake.version == 0:
            two.commit(lambda last: lakes.add_batch(last, "two", 0, [a_file("b", (1, 0, 1))], {}))
        return lakes.add_batch(lake, "one", 0, [a_file("a", (0, 0, 1))], {})

    assert one.commit(meanwhile).version == 2
    assert {each.name for each in two.latest().files} == {"a", "b"}
    assert one.commit(meanwhile).version == 2  # Nothing new.


def test_old_snapshots_go_and_half_written_ones_do_not_count(tmp_path):
    store = LakeStore(str(tmp_path))
    for number in range(30):
        store.commit(lambda last, number=number: lakes.add_batch(last, "q", number, [], {("orders", 0): number}))
        (tmp_path / "_lake" / f".new-{number}").write_text("{")
    store.delete_old()
    assert store.latest().version == 30
    assert len(list((tmp_path / "_lake").glob("0*.json"))) == 20


def test_a_lake_is_a_folder(tmp_path):
    with pytest.raises(ValueError, match="s3a://bucket/lake"):
        LakeStore("s3a://bucket/lake")
    with pytest.raises(ValueError, match="path is missing"):
        LakeStore("")


def test_leftovers_are_those_of_decided_batches():
    query = "6b1f0e1c-6c63-4d3b-8d5c-2a6f8f0d9b11"
    name = f"{file_stem(3, 1, 7, query)}-2.parquet"
    assert is_of_batch(name, query, 7) and is_of_batch(name, query, 8)
    assert not is_of_batch(name, query, 6) and not is_of_batch(name, "another", 8)
    assert name != f"{file_stem(3, 1, 7, query)}-2.parquet"
    assert not is_of_batch("merged-6b1f0e1c-6c63-4d3b-8d5c-2a6f8f0d9b11.parquet", query, 8)
