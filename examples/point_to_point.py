"""Point to point: several workers share the messages of one topic, and each message goes to one of them.

    penstock serve                                # in another terminal
    python examples/point_to_point.py

The workers are members of one group. The topic has as many partitions as there may be workers; a worker that dies
hands its partitions, and what it has not finished, to the others.
"""

import argparse
import threading
from queue import Queue

from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from penstock.client import Connection, Message

WORKERS = 3
JOBS = 30


def work(connection: Connection, topic: str, name: str, finished: "Queue[tuple[str, Message]]") -> None:
    with connection.subscribe(topic, group="workers") as jobs:
        for job in jobs:
            finished.put((name, job))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    parser.add_argument("--topic", default="jobs")
    options = parser.parse_args()

    admin = AdminClient({"bootstrap.servers": options.bootstrap_server})
    admin.create_topics([NewTopic(options.topic, num_partitions=WORKERS)])[options.topic].exception(10)  # There: fine.

    finished: Queue[tuple[str, Message]] = Queue()
    workers, jobs = set(), set()
    with penstock.connect(options.bootstrap_server) as connection:  # Closing it ends the workers' loops.
        for number in range(1, WORKERS + 1):
            threading.Thread(target=work, args=(connection, options.topic, f"worker {number}", finished)).start()

        receipts = [connection.publish(options.topic, f"job {number}", key=str(number)) for number in range(JOBS)]
        for receipt in receipts:
            receipt.result()  # Raises if the job could not be stored.

        while len(jobs) < JOBS:  # At least once: a job may be done twice when workers come or go.
            worker, job = finished.get(timeout=60)  # Raises if no worker is left to do it.
            print(f"{worker} did {job.value!r} (partition {job.partition}, offset {job.offset})")
            workers.add(worker)
            jobs.add(job.value)
    print(f"{len(jobs)} jobs done by {len(workers)} workers")


if __name__ == "__main__":
    main()
