"""Spark's side of Penstock: the data source `format("penstock")`, found by Spark through `pyspark_penstock`.

Needs `pip install penstock[spark]`. Nothing here imports the broker: they meet on the wire.

    from penstock.spark import session

    spark = session()
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", "localhost:9092")
    reader.option("subscribe", "orders").load().show()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.spark.lag import lag
from penstock.spark.launch import environment, session

if TYPE_CHECKING:
    from penstock.spark.archive import records
    from penstock.spark.lake_table import history, table
    from penstock.spark.replay import replayed

__all__ = ["environment", "history", "lag", "records", "replayed", "session", "table"]

# Imported when used: they need what comes with penstock[spark], and to look for it must be possible without.
_HOMES = {"history": "lake_table", "records": "archive", "replayed": "replay", "table": "lake_table"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"penstock.spark.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
