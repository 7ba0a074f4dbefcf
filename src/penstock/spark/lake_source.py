"""`format("penstock-lake")`: the sink of an archive and the source of a replay, as Spark calls them."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamArrowWriter, DataSourceStreamReader
from pyspark.sql.types import StructField, StructType

from penstock.spark.archive import ArchiveWriter, check_columns
from penstock.spark.lake_files import DEFAULT_COMPRESSION
from penstock.spark.replay import ReplayReader, read_replay_options
from penstock.spark.source import HEADERS, SCHEMA


class LakeDataSource(DataSource):
    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "penstock-lake"

    def schema(self) -> StructType:
        return StructType([*SCHEMA, StructField("headers", HEADERS)])

    def reader(self, schema: StructType) -> DataSourceReader:
        raise ValueError("read a lake with penstock.spark.history or penstock.spark.table: Spark does it faster itself")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReplayReader(read_replay_options(dict(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        if overwrite:
            raise ValueError('a lake has no complete output: use outputMode("append")')
        check_columns(schema)
        given = {name.lower(): value for name, value in self.options.items()}
        compression = given.get("compression", DEFAULT_COMPRESSION)
        return ArchiveWriter(given.get("path", ""), given.get("checkpointlocation"), compression)
