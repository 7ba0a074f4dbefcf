"""A driver to be killed: archives a topic, a few records at a time, and replays the lake into another as it grows.

python spark_lake.py MASTER BOOTSTRAP SOURCE TARGET DIRECTORY
"""

import sys
import time

from penstock.spark import records, replayed, session
from penstock.spark.lake_store import LakeStore

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
}


def main() -> None:
    master, bootstrap, source, target, directory = sys.argv[1:]
    lake = f"{directory}/lake"
    spark = session(master=master, config=CONFIG)
    spark.sparkContext.setLogLevel("ERROR")
    stream = records(spark, source, lake=lake, bootstrap=bootstrap, max_offsets_per_trigger=50)
    writer = stream.writeStream.format("penstock-lake").option("path", lake)
    archive = writer.option("checkpointLocation", f"{directory}/archive").start()
    while not LakeStore(lake).latest().version and archive.isActive:
        time.sleep(0.1)
    stream = replayed(spark, source, lake=lake, bootstrap=bootstrap, target=target, max_offsets_per_trigger=50)
    writer = stream.writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer.option("checkpointLocation", f"{directory}/replay").start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
