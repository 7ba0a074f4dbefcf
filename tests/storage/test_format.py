from penstock.base.types import TopicPartition
from penstock.storage.format import base_offset_of, parse_partition_directory, partition_directory, segment_path


def test_a_segment_file_is_named_by_its_base_offset():
    assert segment_path("d", 42, ".log") == "d/00000000000000000042.log"
    assert base_offset_of("00000000000000000042.log") == 42
    assert base_offset_of("00000000000000000042.log.swap") == 42


def test_other_files_have_no_base_offset():
    for name in (
        "leader-epoch-checkpoint",
        "partition.metadata",
        "42.log",
        "0000000000000000004x.log",
        "²" * 20 + ".log",
    ):
        assert base_offset_of(name) is None


def test_a_partition_directory_names_topic_and_partition():
    for topic_partition in (TopicPartition("a", 0), TopicPartition("a-1", 12), TopicPartition("a.b_c-", 3)):
        assert parse_partition_directory(partition_directory(topic_partition)) == topic_partition
    for name in ("a", "-1", "a-", "a-x", "a-²", "meta.properties"):
        assert parse_partition_directory(name) is None
