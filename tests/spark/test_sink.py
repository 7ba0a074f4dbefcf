"""The sink's protocol against a broker, without Spark: it may die at every request, before it or behind the answer."""

import pickle
import time

import pyarrow as pa
import pytest

from penstock.spark import writer
from penstock.spark.brokers import Brokers, Connection, Refusal
from penstock.spark.options import LATEST, Isolation
from penstock.spark.plan import OffsetRange
from penstock.spark.reader import Wanted, read
from penstock.spark.writer import BatchWriter, SinkOptions, StreamWriter
from penstock.wire.compression import Codec

QUERY = "6b1f0e1c-6c63-4d3b-8d5c-2a6f8f0d9b11"


class Dead(BaseException):
    """Nobody catches a crash."""


@pytest.fixture
def options(penstock_broker):
    topic = penstock_broker.create_topic(partitions=2)
    return SinkOptions(penstock_broker.bootstrap_servers, topic, True, f"sink-of-{topic}", Codec.LZ4)


@pytest.fixture
def whoami(monkeypatch):
    """Whom a task takes itself for: (task, attempt, batch id, query id)."""
    context: list = [0, 0, 0, QUERY]
    monkeypatch.setattr(writer, "whoami", lambda: tuple(context))
    return context


def rows_of(batch_id: int, task: int) -> list[str]:
    return [f"{batch_id}-{task}-{number}" for number in range(3)]


def run_batch(options, whoami, batch_id, *, tasks=2, query_id=QUERY) -> None:
    """One micro-batch, as Spark runs it: a writer goes to the tasks, another one commits."""
    sent = pickle.dumps(StreamWriter(options))
    messages = []
    for task in range(tasks):
        whoami[:] = [task, 0, batch_id, query_id]
        rows = rows_of(batch_id, task)
        batch = pa.record_batch({"key": pa.array(rows), "value": pa.array(rows)})
        messages.append(pickle.loads(pickle.dumps(pickle.loads(sent).write(iter([batch])))))
    StreamWriter(options).commit(messages, batch_id)


def committed(options) -> list[str]:
    """What a consumer with read_committed sees, once no transaction is open: markers take a moment."""
    give_up_at = time.monotonic() + 60
    with Brokers(options.bootstrap_servers) as brokers:
        latest = dict.fromkeys(brokers.partitions([options.topic]), LATEST)
        while True:
            ends = brokers.offsets(latest, Isolation.READ_COMMITTED)
            if ends == brokers.offsets(latest, Isolation.READ_UNCOMMITTED):
                break
            assert time.monotonic() < give_up_at, "a transaction stays open"
    found = []
    for (topic, partition), end in ends.items():
        part = OffsetRange(topic, partition, 0, end)
        wanted = Wanted(options.bootstrap_servers, part, Isolation.READ_COMMITTED, False, True, 9000)
        found += [value.as_py().decode() for batch in read(wanted) for value in batch["value"]]
    return sorted(found)


def expected(*batches: int, tasks: int = 2) -> list[str]:
    return sorted(row for batch_id in batches for task in range(tasks) for row in rows_of(batch_id, task))


def test_batches_are_there_once_they_are_committed(options, whoami):
    for batch_id in range(5):
        run_batch(options, whoami, batch_id)
        assert committed(options) == expected(*range(batch_id + 1))


def test_a_batch_that_counts_is_not_written_again(options, whoami):
    run_batch(options, whoami, 0)
    run_batch(options, whoami, 0)
    assert committed(options) == expected(0)


def test_a_new_query_starts_over(options, whoami):
    """Its checkpoint was deleted: batch 0 is another one now, though the sink is the same."""
    run_batch(options, whoami, 0)
    run_batch(options, whoami, 0, query_id="another")
    assert committed(options) == sorted(expected(0) * 2)


def crash_at(monkeypatch, step: int, *, is_answered: bool) -> list[int]:
    """From request `step` on nothing goes through; that one itself may have been carried out. Counts the requests."""
    count, ask = [0], Connection.ask

    def counted(self, api_key, version, request):
        count[0] += 1
        if count[0] < step:
            return ask(self, api_key, version, request)
        if count[0] == step and is_answered:
            ask(self, api_key, version, request)
        raise Dead

    monkeypatch.setattr(Connection, "ask", counted)
    return count


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_crash_at_any_request_loses_nothing_and_repeats_nothing(penstock_broker, whoami, monkeypatch, is_answered):
    step, is_whole = 0, False
    while not is_whole:
        step += 1
        assert step < 200
        topic = penstock_broker.create_topic(partitions=2)
        options = SinkOptions(penstock_broker.bootstrap_servers, topic, True, f"crash-{topic}", Codec.NONE)
        run_batch(options, whoami, 0)
        with monkeypatch.context() as patched:
            crash_at(patched, step, is_answered=is_answered)
            try:
                run_batch(options, whoami, 1)
                is_whole = True
            except Dead:
                pass
        # As Spark does it: what it has not seen committed it runs again, perhaps with fewer tasks at work.
        run_batch(options, whoami, 1)
        run_batch(options, whoami, 2, tasks=1)
        assert committed(options) == sorted(expected(0, 1) + rows_of(2, 0)), f"died at request {step}"
    assert step > 15, "the crashes were not spread over the protocol"


def test_an_old_driver_can_decide_nothing(options, whoami):
    sent = pickle.dumps(StreamWriter(options))
    whoami[:] = [0, 0, 0, QUERY]
    batch = pa.record_batch({"value": pa.array(["old"])})
    message = pickle.loads(sent).write(iter([batch]))
    run_batch(options, whoami, 0)  # Another driver has started the query meanwhile.
    with pytest.raises((Refusal, writer.SinkFailed)):
        StreamWriter(options).commit([message], 0)
    assert committed(options) == expected(0)


def test_a_task_that_was_tried_twice_counts_once(options, whoami):
    """The first attempt has written all, but the driver has not heard of it."""
    sent = pickle.dumps(StreamWriter(options))
    messages = []
    for attempt in (0, 1):
        whoami[:] = [0, attempt, 0, QUERY]
        rows = rows_of(0, 0)
        messages.append(pickle.loads(sent).write(iter([pa.record_batch({"value": pa.array(rows)})])))
    StreamWriter(options).commit(messages[1:], 0)
    run_batch(options, whoami, 1, tasks=1)  # Which ends what was left open.
    assert committed(options) == sorted(rows_of(0, 0) + rows_of(1, 0))


def test_a_failed_batch_is_gone(options, whoami):
    sent = pickle.dumps(StreamWriter(options))
    whoami[:] = [0, 0, 0, QUERY]
    message = pickle.loads(sent).write(iter([pa.record_batch({"value": pa.array(["x"])})]))
    StreamWriter(options).abort([message, None], 0)
    assert committed(options) == []


def test_a_batch_without_rows_is_nothing(options, whoami):
    sent = pickle.dumps(StreamWriter(options))
    whoami[:] = [0, 0, 0, QUERY]
    message = pickle.loads(sent).write(iter([pa.record_batch({"value": pa.array([], pa.string())})]))
    StreamWriter(options).commit([message], 0)
    assert committed(options) == []


def test_a_writer_that_commits_takes_nothing_over(options, whoami):
    """Only one that is handed to tasks shuts others out: Spark makes a second one for the commit."""
    assert StreamWriter(options)._gate is None
    assert pickle.loads(pickle.dumps(StreamWriter(options)))._gate is not None
    assert not hasattr(BatchWriter(options), "_gate")
