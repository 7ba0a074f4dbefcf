"""Records that cannot be read as they should: set apart with the reason, so that one of them stops no pipeline.

`judged` reads the values as JSON and adds the columns `parsed` and `reason`, which is null where all is well. What is
`accepted` goes on; `dead_letters` are the others as rows for a sink, as they came, with Kafka's headers for such
records (KIP-1191) that say where they are from and why they are here.

A value of another type than declared may mean that it is the schema that is wrong. With `is_strict` such a clash stops
the query instead, and the error names the record: TOPIC-PARTITION@OFFSET.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

HEADERS = {"topic": "__dlq.errors.topic", "partition": "__dlq.errors.partition", "offset": "__dlq.errors.offset"}
REASON_HEADER = "__dlq.errors.message"

_REST = "_rest"  # Where Spark puts the text of what does not fit; and no field can have the name.


def judged(records: DataFrame, schema: StructType, *, is_strict: bool = False) -> DataFrame:
    """The source's records with the columns `parsed` and `reason`. A field that is NOT NULL must be there."""
    fields = schema.fields
    text = sql.expr("try_validate_utf8(CAST(value AS STRING))")
    wanted = StructType([*fields, StructField(_REST, StringType())])
    read = sql.from_json(text, wanted, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _REST})
    # What reads JSON does not look behind its end. In brackets, anything there is an error, or a second element.
    listed = sql.try_parse_json(sql.concat(sql.lit("["), text, sql.lit("]")))
    with_text = records.withColumn("_text", text).withColumn("_read", read).withColumn("_list", listed)
    judgement = with_text.withColumn("reason", _reason(fields, is_strict))
    parsed = sql.struct(*(sql.col("_read")[field.name].alias(field.name) for field in fields))
    return judgement.withColumn("parsed", parsed).drop("_text", "_read", "_list")


def accepted(judgement: DataFrame) -> DataFrame:
    return judgement.filter("reason IS NULL")


def dead_letters(judgement: DataFrame, *, has_headers: bool = False) -> DataFrame:
    """Of records with a `reason`, whoever found it: key, value, timestamp and headers for a sink.

    `has_headers`: of the source too. It could be seen, but a pipeline's functions may not look at columns.
    """
    headers = [_header(name, sql.col(column).cast("string")) for column, name in HEADERS.items()]
    headers.append(_header(REASON_HEADER, sql.col("reason")))
    ours = sql.array(*headers)
    if has_headers:
        ours = sql.when(sql.col("headers").isNull(), ours).otherwise(sql.concat("headers", ours))
    return judgement.filter("reason IS NOT NULL").select("key", "value", "timestamp", ours.alias("headers"))


def _header(name: str, value: Column) -> Column:
    return sql.struct(sql.lit(name).alias("key"), value.cast("binary").alias("value"))


def _reason(fields: list[StructField], is_strict: bool) -> Column:
    """Most records are sound, and the first condition is all they cost; the others find out what is wrong."""
    read, json = sql.col("_read"), sql.expr("try_variant_get(_list, '$[0]', 'variant')")
    is_more = sql.expr("try_variant_get(_list, '$[1]', 'variant')").isNotNull()
    # Of an array, `_read` would be the first element.
    is_object = sql.expr(r"ltrim(' \t\r\n', _text) LIKE '{%'")
    is_sound = read[_REST].isNull() & is_object & json.isNotNull() & ~is_more
    for field in fields:
        if not field.nullable:
            is_sound = is_sound & read[field.name].isNotNull()
    where = sql.concat(sql.col("topic"), sql.lit("-"), sql.col("partition"), sql.lit("@"), sql.col("offset"))

    def clash(text: Column) -> Column:
        return sql.raise_error(sql.concat(where, sql.lit(": "), text)).cast("string") if is_strict else text

    reason = (
        sql.when(is_sound, sql.lit(None).cast("string"))
        .when(sql.col("value").isNull(), sql.lit("no value"))
        .when(sql.col("_text").isNull(), sql.lit("not UTF-8"))
        .when(json.isNull() | is_more, sql.lit("not JSON"))
        .when(~sql.schema_of_variant(json).startswith("OBJECT"), sql.lit("not a JSON object"))
    )
    for field in fields:
        given = sql.expr(f"""try_variant_get(_list, '$[0]["{field.name}"]', 'variant')""")
        is_given = given.isNotNull() & ~sql.is_variant_null(given)
        if not field.nullable:
            reason = reason.when(~is_given, sql.lit(f"field {field.name} is missing"))
        declared = field.dataType.simpleString().upper()
        told = sql.concat(
            sql.lit(f"field {field.name} is "), sql.schema_of_variant(given), sql.lit(f", and declared as {declared}")
        )
        reason = reason.when(is_given & read[field.name].isNull(), clash(told))
    return reason.otherwise(clash(sql.lit("it does not fit the schema")))
