"""What is wrong with a record is found out, and told where it is from; strict, it stops the query."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from penstock.spark.dead_letters import accepted, dead_letters, judged

SCHEMA = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("n", StructType([StructField("x", IntegerType())])),
        StructField("at", TimestampType()),
        StructField("name", StringType()),
    ]
)
SOUND = [b'{"id":1,"n":{"x":1}}', b' \n {"id":2,"more":1}', b'{"id":9,"at":"2026-01-01T00:00:00Z","name":5}']
BAD = {
    None: "no value",
    b"\xff\xfe": "not UTF-8",
    b"": "not JSON",
    b"nope": "not JSON",
    b'{"id":1} trailing': "not JSON",
    b'{"id":1}}': "not JSON",
    b'{"id":1},{"id":2}': "not JSON",
    b"[1]": "not a JSON object",
    b'[{"id":7}]': "not a JSON object",
    b'"id"': "not a JSON object",
    b"{}": "field id is missing",
    b'{"id":null}': "field id is missing",
    b'{"id":"x"}': "field id is STRING, and declared as BIGINT",
    b'{"id":1.5}': "field id is DECIMAL(2,1), and declared as BIGINT",
    b'{"id":8,"at":"yesterday"}': "field at is STRING, and declared as TIMESTAMP",
    b'{"id":3,"n":{"x":"bad"}}': "it does not fit the schema",
}


@pytest.fixture
def records(spark):
    def records(values):
        rows = [(b"k", value, "orders", 3, offset) for offset, value in enumerate(values)]
        columns = "key binary, value binary, topic string, partition int, offset long"
        return spark.createDataFrame(rows, columns).selectExpr("*", "timestamp_millis(1760000000000) AS timestamp")

    return records


def test_bad_records_are_set_apart_with_the_reason(records):
    judgement = judged(records([*BAD, *SOUND]), SCHEMA).cache()
    found = {row.value if row.value is None else bytes(row.value): row.reason for row in judgement.collect()}
    assert found == {**BAD, **dict.fromkeys(SOUND)}
    assert [row.parsed.id for row in accepted(judgement).collect()] == [1, 2, 9]
    letters = dead_letters(judgement).collect()
    assert len(letters) == len(BAD)
    assert {header.key: bytes(header.value) for header in letters[1].headers} == {
        "__dlq.errors.topic": b"orders",
        "__dlq.errors.partition": b"3",
        "__dlq.errors.offset": b"1",
        "__dlq.errors.message": b"not UTF-8",
    }


def test_headers_that_were_there_stay(records):
    ours = "array(struct('h' AS key, CAST('1' AS BINARY) AS value))"
    given = records([b"a", b"b"]).selectExpr("*", f"IF(offset = 0, {ours}, NULL) AS headers")
    names = [
        [header.key for header in row.headers]
        for row in dead_letters(judged(given, SCHEMA), has_headers=True).collect()
    ]
    assert names[0] == ["h", *names[1]]


def test_strict_stops_at_a_clash_of_types_and_names_the_record(records):
    only_bad_in_other_ways = [
        value for value, reason in BAD.items() if "declared" not in reason and "fit" not in reason
    ]
    assert judged(records(only_bad_in_other_ways), SCHEMA, is_strict=True).count() == 12
    with pytest.raises(PySparkException, match="orders-3@1: field id is STRING, and declared as BIGINT"):
        judged(records([b'{"id":1}', b'{"id":"x"}']), SCHEMA, is_strict=True).collect()
