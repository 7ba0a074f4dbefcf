"""Which task of which micro-batch this is."""

from typing import NamedTuple

from pyspark import TaskContext


class Unknown(Exception):
    """Spark does not say."""


class Whoami(NamedTuple):
    task: int
    attempt: int
    batch_id: int
    query_id: str


def whoami() -> Whoami:
    context = TaskContext.get()
    assert context is not None
    batch_id, query_id = (context.getLocalProperty(name) for name in ("streaming.sql.batchId", "sql.streaming.queryId"))
    if batch_id is None or query_id is None:
        raise Unknown("Spark does not say which query and batch this is: exactly once is not possible here")
    return Whoami(context.partitionId(), context.attemptNumber(), int(batch_id), query_id)
