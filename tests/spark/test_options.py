"""The options of Spark's Kafka connector: what they mean, and what is wrong with the ones that mean nothing."""

import pytest

from penstock.spark.options import EARLIEST, LATEST, Bound, Isolation, read_source_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def read(is_streaming: bool = False, **options: str):
    return read_source_options({**BASE, **options}, is_streaming=is_streaming)


def test_a_batch_reads_everything_and_a_stream_what_comes():
    assert (read().start, read().end) == (Bound("offset", EARLIEST), Bound("offset", LATEST))
    assert read(is_streaming=True).start == Bound("offset", LATEST)


def test_all_of_them():
    options = read_source_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "Assign": '{"orders": [1, 0]}',
            "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
            "endingTimestamp": "1700000000000",
            "minPartitions": "5",
            "maxRecordsPerPartition": "100",
            "includeHeaders": "TRUE",
            "failOnDataLoss": "false",
            "kafka.isolation.level": "read_committed",
            "kafkaConsumer.pollTimeoutMs": "512",
            "maxTriggerDelay": "2m",
        },
        is_streaming=False,
    )
    assert options.assigned == (("orders", 0), ("orders", 1))
    assert options.start == Bound("offset", each={("orders", 0): 23, ("orders", 1): EARLIEST})
    assert options.end == Bound("timestamp", everywhere=1_700_000_000_000)
    assert (options.parts_min, options.records_max, options.poll_timeout_ms) == (5, 100, 512)
    assert options.has_headers and not options.fails_on_data_loss
    assert options.isolation is Isolation.READ_COMMITTED
    assert options.trigger_delay_ms_max == 120_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": ""}, "bootstrap"),
        ({"assign": '{"a": [0]}'}, "exactly one"),
        ({"subscribe": " , "}, "names no topic"),
        ({"startingOffsets": "latest"}, "cannot start"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "cannot start"),
        ({"endingOffsets": "earliest"}, "cannot end"),
        ({"startingOffsets": "first"}, "startingOffsets must look like"),
        ({"startingTimestamp": "yesterday"}, "milliseconds"),
        ({"startingOffsets": '{"o": {"0": 9}}', "endingOffsets": '{"o": {"0": 8}}'}, "after its end"),
        ({"startingOffsets": '{"o": {"0": 9}}', "endingOffsets": '{"o": {"1": 8}}'}, "the same partitions"),
        ({"minPartitions": "0"}, "positive"),
        ({"maxTriggerDelay": "soon"}, "no time"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss must be one of true, false"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"kafka.security.protocol": "SASL_SSL"}, "only PLAINTEXT"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above"),
    ],
)
def test_what_is_wrong_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        read(**options)


def test_a_stream_has_no_end():
    with pytest.raises(ValueError, match="no end"):
        read(is_streaming=True, endingOffsets="latest")


def test_a_pattern_must_be_one():
    options = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "("}
    with pytest.raises(ValueError, match="regular expression"):
        read_source_options(options, is_streaming=True)
