"""librdkafka as the load: a second opinion beside Kafka's own tools, and the client of most Python users."""

import time

from confluent_kafka import Producer

BATCH = 10_000  # Records handed over at a time.


def produce(bootstrap: str, topic: str, *, count: int, record_bytes: int) -> float:
    """MB/s, from the first record to the last answer."""
    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.size": 1_000_000,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "error_cb": lambda error: failed.append(str(error)),
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failed.append(str(error)),
        }
    )
    value = bytes(record_bytes)
    producer.list_topics(topic, timeout=10)  # Connected before the clock starts.
    start = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush(120)
    elapsed = time.perf_counter() - start
    if failed or len(producer):
        raise RuntimeError(f"{len(failed) + len(producer)} records were not stored: {failed[:3]}")
    return count * record_bytes / 1e6 / elapsed
