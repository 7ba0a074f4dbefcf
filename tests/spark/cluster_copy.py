"""A driver on a Spark cluster: copies a topic to another as a stream, exactly once, and prints what it saw, as JSON.

python cluster_copy.py MASTER BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

import json
import sys

from penstock.spark import session
from spark_cluster import CONFIG


def main() -> None:
    master, bootstrap, source, target, checkpoint = sys.argv[1:]
    spark = session(master=master, config=CONFIG)

    def load(reader, topic):
        reader = reader.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        return reader.option("startingOffsets", "earliest").option("minPartitions", "4").load()

    frame = load(spark.readStream, source).select("key", "value")
    writer = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    rows = load(spark.read, target).selectExpr("CAST(value AS STRING) AS value").collect()
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    print(
        json.dumps(
            {
                "values": sorted(int(row.value) for row in rows),
                "executors": len(tracker.getExecutorInfos()) - 1,  # The driver is among them.
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
