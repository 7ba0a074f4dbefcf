"""A driver to be killed: copies one topic to another, a few records at a time, exactly once, for as long as it lives.

python spark_copy.py MASTER BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

import sys

from penstock.spark import session
from spark_cluster import CONFIG


def main() -> None:
    master, bootstrap, source, target, checkpoint = sys.argv[1:]
    spark = session(master=master, config=CONFIG)
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
    frame = stream.option("maxOffsetsPerTrigger", "50").load().select("key", "value")
    writer = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
