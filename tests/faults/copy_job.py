"""The job that R24 is about, a process of its own: copies a topic, each record once, whatever is done to it.

    copy_job.py BOOTSTRAP SOURCE TARGET GROUP BATCH ID

ID is the transactional id; "-" for one that nobody has had before. Runs until it is killed.
"""

import logging
import sys

import penstock

TRANSACTION_TIMEOUT_S = 6.0
SETTINGS = {
    "session.timeout.ms": 3_000,  # What a member that was killed still holds, its heir gets after so long.
    "heartbeat.interval.ms": 500,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 250,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "linger.ms": 2,
}


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    bootstrap, source, target, group, batch, transactional_id = sys.argv[1:]
    with (
        penstock.connect(bootstrap, settings=SETTINGS) as queue,
        queue.process(
            source,
            group=group,
            batch=int(batch),
            batch_seconds=1,
            id=None if transactional_id == "-" else transactional_id,
            transaction_timeout=TRANSACTION_TIMEOUT_S,
        ) as step,
    ):
        for message in step:
            step.publish(target, message.value, partition=message.partition)


if __name__ == "__main__":
    main()
