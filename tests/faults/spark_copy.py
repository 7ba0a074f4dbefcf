"""A driver to be killed: copies one topic to another, a few records at a time, exactly once, for as long as it lives.

python spark_copy.py BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

import sys

from penstock.spark import session


def main() -> None:
    bootstrap, source, target, checkpoint = sys.argv[1:]
    config = {"spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = session(master="local[2]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
    stream = stream.option("subscribe", source).option("startingOffsets", "earliest")
    frame = stream.option("maxOffsetsPerTrigger", "50").load().select("key", "value")
    writer = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
