"""The sink of `format("penstock")`: what tasks write, and how the driver has it count, once. See docs/spark.md.

A task writes its rows in a transaction of its own, which it leaves open, and tells the driver who may end it. When all
tasks are done the driver notes the decision, in a transaction of its own that only the newest driver can commit, and
then commits the tasks'. A driver that dies in between is followed by one that reads the note first: it commits what was
decided, aborts the rest, and its tasks write a batch again only if that was not decided.
"""

import hashlib
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark import sink_log
from penstock.spark.brokers import Brokers
from penstock.spark.encode import Rows, encode_headers, partitions_of
from penstock.spark.options import check_kafka_options
from penstock.spark.plan import TopicPartition
from penstock.spark.producer import Producer
from penstock.spark.sink_log import Decision
from penstock.spark.task import whoami
from penstock.spark.transactions import CommittedOffset, Transaction, Transactions
from penstock.wire.compression import Codec

GATE_TIMEOUT_MS = 60_000  # A decision is a matter of milliseconds.
BATCH_TIMEOUT_MS = 900_000  # The longest that a broker allows by default: from a task's first row to the job's end.

_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")
_TYPES = {
    "key": {"binary", "string"},
    "value": {"binary", "string"},
    "topic": {"string"},
    "partition": {"int"},
    "timestamp": {"timestamp"},
    "headers": {"array<struct<key:string,value:binary>>"},
}


class SinkFailed(Exception):
    """Rows that cannot be written, or a query that another one has replaced."""


@dataclass(frozen=True)
class SinkOptions:
    bootstrap_servers: str
    topic: str | None
    is_exactly_once: bool
    sink_id: str  # The same for a query whenever it is started again; empty for a batch.
    codec: Codec


def read_sink_options(options: Mapping[str, str], schema: StructType, *, is_streaming: bool) -> SinkOptions:
    given = {name.lower(): value for name, value in options.items()}
    check_kafka_options(given)
    topic = given.get("topic", "").strip() or None
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise ValueError(f"column {name} must be {' or '.join(sorted(allowed))}, not {types[name]}")
    if "value" not in types:
        raise ValueError("there is no column value: it has the bytes, or the text, of a record")
    if topic is None and "topic" not in types:
        raise ValueError("there is no topic: give the option topic, or a column of that name")
    delivery = given.get("delivery", "exactly-once").strip().lower()
    if delivery not in ("exactly-once", "at-least-once"):
        raise ValueError(f"delivery must be exactly-once or at-least-once, not {delivery!r}")
    codec = given.get("kafka.compression.type", "none").strip().upper()
    if codec not in Codec.__members__:
        raise ValueError(f"kafka.compression.type must be one of {', '.join(Codec.__members__).lower()}")
    sink_id = _sink_id(given) if is_streaming and delivery == "exactly-once" else ""
    return SinkOptions(given["kafka.bootstrap.servers"], topic, delivery == "exactly-once", sink_id, Codec[codec])


def _sink_id(given: Mapping[str, str]) -> str:
    if "sinkid" in given:
        if not _SINK_ID.fullmatch(given["sinkid"]):
            raise ValueError(f"sinkId has letters, digits, '.', '_' and '-', not {given['sinkid']!r}")
        return given["sinkid"]
    if not given.get("checkpointlocation"):
        raise ValueError(
            "an exactly-once sink must be known again when its query is restarted: give the option checkpointLocation,"
            " or sinkId, a name that no other query has; or delivery=at-least-once"
        )
    return hashlib.sha256(given["checkpointlocation"].encode()).hexdigest()[:32]


class Gate(NamedTuple):
    """The driver's right to decide, until the next one takes it, and what was decided so far."""

    transaction: Transaction
    last: Decision | None
    slot: int  # Of the tasks' transactional ids.


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    task: int
    attempt: int
    transaction: Transaction | None = None  # None: no row, or it is only idempotent.
    partition: TopicPartition | None = None  # One that was written to.
    query_id: str = ""
    gate: Gate | None = None
    is_decided_before: bool = False  # The batch counts already: nothing was written.


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._gate: Gate | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks: Spark hands a writer to those of each batch, before they start."""
        if self._options.is_exactly_once and self._gate is None:
            with Brokers(self._options.bootstrap_servers) as brokers:
                self._gate = open_gate(Transactions(brokers), self._options.sink_id)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task, attempt, batch_id, query_id = whoami()
        options, gate = self._options, self._gate
        with Brokers(options.bootstrap_servers) as brokers:
            if gate is None:
                return _write_task(brokers, options, iterator, None, Written(task, attempt))
            message = Written(task, attempt, query_id=query_id, gate=gate)
            if gate.last is not None and gate.last.covers(query_id, batch_id):
                message.is_decided_before = True
                return message
            name = sink_log.transactional_id(options.sink_id, gate.slot, task, attempt)
            return _write_task(brokers, options, iterator, name, message)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _written(messages)
        transactions_of = [each.transaction for each in written if each.transaction is not None]
        if not transactions_of:
            return  # Nothing to decide; or it was, and the gate has seen to the rest when it was opened.
        assert not any(each.is_decided_before for each in written), "tasks disagree about what is decided"
        gate, query_id = written[0].gate, written[0].query_id
        assert gate is not None
        attempts = [(each.task, each.attempt) for each in written]
        decision = sink_log.decide(gate.last, query_id, batchId, gate.slot, attempts)
        partition = min(each.partition for each in written if each.partition is not None)
        with Brokers(self._options.bootstrap_servers) as brokers:
            transactions, group = Transactions(brokers), sink_log.group_id(self._options.sink_id)
            for each in transactions_of:
                if not transactions.is_open(each):
                    raise SinkFailed(f"{each.transactional_id} was taken by another: this query runs elsewhere as well")
            note = CommittedOffset(decision.number, decision.metadata())
            transactions.commit_offset(gate.transaction, group, partition, note)
            transactions.end(gate.transaction, is_commit=True)  # From here on the batch counts.
            for each in transactions_of:
                transactions.end(each, is_commit=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What the messages do not name, the next gate aborts."""
        _abort(self._options, messages)


class BatchWriter(DataSourceArrowWriter):
    """All rows or, when the job fails, none. Spark starts no job again, so there is nothing to decide twice."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        name = f"penstock-spark-batch:{self._job_id}:{task}:{attempt}" if self._options.is_exactly_once else None
        with Brokers(self._options.bootstrap_servers) as brokers:
            return _write_task(brokers, self._options, iterator, name, Written(task, attempt), BATCH_TIMEOUT_MS)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with Brokers(self._options.bootstrap_servers) as brokers:
            transactions = Transactions(brokers)
            for each in _written(messages):
                if each.transaction is not None:
                    transactions.end(each.transaction, is_commit=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


def open_gate(transactions: Transactions, sink_id: str) -> Gate:
    """Shut earlier drivers out, then finish what they have decided and abort what they have not."""
    transaction = transactions.begin(sink_log.gate_id(sink_id), timeout_ms=GATE_TIMEOUT_MS)
    last = sink_log.last_decision(transactions.committed_offsets(sink_log.group_id(sink_id)))
    decided = last.transactional_ids(sink_id) if last is not None else set()
    for name in transactions.open_ids(sink_log.prefix(sink_id)):
        kept = transactions.take_over(name)
        if kept.is_open:
            transactions.end(kept.transaction, is_commit=name in decided)
    return Gate(transaction, last, sink_log.next_slot(transaction.epoch, last))


def _abort(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    with Brokers(options.bootstrap_servers) as brokers:
        transactions = Transactions(brokers)
        for each in _written(messages):
            if each.transaction is not None:
                transactions.end(each.transaction, is_commit=False)


def _written(messages: Iterable[WriterCommitMessage | None]) -> list[Written]:
    return [each for each in messages if isinstance(each, Written)]


def _write_task(
    brokers: Brokers,
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    transactional_id: str | None,
    message: Written,
    timeout_ms: int = 0,
) -> Written:
    """Write all rows. A transaction is opened by the first, and stays open; without an id there is none."""
    transactions, producer = Transactions(brokers), None
    transaction: Transaction | None = None
    router = Router(brokers, options.topic)
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if producer is None:
                is_two_phase = transactional_id is not None and not timeout_ms
                transaction = transactions.begin(transactional_id, timeout_ms=timeout_ms, is_two_phase=is_two_phase)
                producer = Producer(brokers, transaction, codec=options.codec)
            producer.write(router.routed(batch))
    except BaseException:
        if transaction is not None and transactional_id is not None and producer and producer.first_partition:
            transactions.end(transaction, is_commit=False)
        raise
    if producer is not None and transactional_id is not None:
        message.transaction, message.partition = transaction, producer.first_partition
    return message


class Router:
    """Which rows go to which partition: the column `partition`, else by key as Kafka's clients do, else in turn."""

    def __init__(self, brokers: Brokers, topic: str | None) -> None:
        self._brokers = brokers
        self._topic = topic
        self._counts: dict[str, int] = {}
        self._turn = 0  # Rows without a key go to one partition, those of the next batch to the next.

    def routed(self, batch: pa.RecordBatch) -> dict[TopicPartition, Rows]:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        rows = _rows(columns, batch.num_rows)
        topics = self._topics(columns, batch.num_rows)
        partitions = columns.get("partition")
        found: dict[TopicPartition, Rows] = {}
        for topic, of_topic in topics.items():
            mine = rows if of_topic is None else rows.taken(of_topic)
            given = partitions if of_topic is None or partitions is None else partitions.take(pa.array(of_topic))
            chosen = self._partitions(topic, mine, given)
            for partition in np.unique(chosen).tolist():
                which = np.flatnonzero(chosen == partition)
                found[topic, partition] = mine if len(which) == len(chosen) else mine.taken(which)
        self._turn += 1
        return found

    def _topics(self, columns: dict[str, pa.Array], count: int) -> dict[str, Any]:
        """The rows of each topic; None: all."""
        if self._topic is not None:
            return {self._topic: None}
        named = columns["topic"]
        if named.null_count:
            raise SinkFailed("a row has no topic: its column topic is null")
        encoded = named.dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        return {name.as_py(): np.flatnonzero(numbers == number) for number, name in enumerate(encoded.dictionary)}

    def _partitions(self, topic: str, rows: Rows, given: pa.Array | None) -> Any:
        if topic not in self._counts:
            self._counts[topic] = len(self._brokers.partitions([topic], may_create=True))
        count = self._counts[topic]
        chosen = np.full(len(rows.keys), self._turn % count, np.int64)
        if rows.keys.null_count < len(rows.keys):
            has_key = rows.keys.is_valid().to_numpy(zero_copy_only=False)
            chosen = np.where(has_key, partitions_of(rows.keys, count), chosen)
        if given is not None:
            numbers = given.fill_null(-1).to_numpy(zero_copy_only=False)
            if len(numbers) and numbers.max() >= count:
                raise SinkFailed(f"{topic} has {count} partitions, and a row is for partition {numbers.max()}")
            chosen = np.where(numbers >= 0, numbers, chosen)
        return chosen


def _rows(columns: dict[str, pa.Array], count: int) -> Rows:
    now_ms = int(time.time() * 1000)
    timestamps = np.full(count, now_ms, np.int64)
    if "timestamp" in columns:
        given = columns["timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        timestamps = given.fill_null(now_ms).to_numpy(zero_copy_only=False)
    headers = None
    if "headers" in columns and columns["headers"].null_count < count:
        headers = pa.array([encode_headers(each) for each in columns["headers"].to_pylist()], pa.binary())
    keys = columns["key"].cast(pa.binary()) if "key" in columns else pa.nulls(count, pa.binary())
    return Rows(keys, columns["value"].cast(pa.binary()), timestamps, headers)
