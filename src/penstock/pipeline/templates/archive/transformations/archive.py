from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import records

spark = SparkSession.active()
lake = str(Path(spark.conf.get("penstock.lake")).absolute())

dp.create_sink("lake", "penstock-lake", {"path": lake, "compression": spark.conf.get("penstock.compression")})


@dp.append_flow(target="lake")
def archive() -> DataFrame:
    return records(
        spark,
        spark.conf.get("penstock.topic"),
        lake=lake,
        bootstrap=spark.conf.get("penstock.bootstrap.servers"),
        max_offsets_per_trigger=int(spark.conf.get("penstock.batch")),
    )
