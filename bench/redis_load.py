"""redis-py with hiredis as the load: XADD in pipelines, XREAD in long polls."""

import threading
import time
from collections.abc import Iterator

from redis import Redis

from bench.client_load import ClientLoad, Moved
from bench.latencies import Latencies
from bench.pace import Pace
from ports import HOST

BATCH = 1_000  # Records in a pipeline, and in an answer.
BEFORE_FIRST = "0"  # The id.
FIELD = b"v"

Entry = tuple[bytes, dict[bytes, bytes]]


class RedisLoad(ClientLoad):
    def create(self, stream: str) -> None:
        """Nothing: the first XADD makes it."""

    def delete(self, stream: str) -> None:
        with self._connect() as client:
            client.delete(stream)

    def produce(self, stream: str, record_bytes: int, seconds: float) -> Moved:
        fields = {FIELD: bytes(record_bytes)}
        with self._connect() as client:
            client.ping()  # Connected before the clock starts.
            begun, count = time.perf_counter(), 0
            while time.perf_counter() - begun < seconds:
                pipeline = client.pipeline(transaction=False)
                for _ in range(BATCH):
                    pipeline.xadd(stream, fields)
                count += len(pipeline.execute())
            return Moved(count, time.perf_counter() - begun)

    def consume(self, stream: str, count: int, seconds: float) -> Moved:
        with self._connect() as client:
            client.ping()
            begun, received, batches = time.perf_counter(), 0, _batches(client, stream)
            while received < count and time.perf_counter() - begun < seconds:
                received += len(next(batches))
            return Moved(received, time.perf_counter() - begun)

    def at_rate(self, stream: str, rate: int, seconds: float) -> Latencies:
        with self._connect() as producer, self._connect() as consumer:
            pace, batches = Pace(rate, seconds), _batches(consumer, stream)
            sender = threading.Thread(
                target=pace.send_all, args=[lambda record: producer.xadd(stream, {FIELD: record})]
            )
            sender.start()
            while not pace.is_complete:
                for _, fields in next(batches):
                    pace.on_record(fields[FIELD])
            sender.join()
        return pace.latencies()

    def _connect(self) -> Redis:
        return Redis(host=HOST, port=self._port)


def _batches(client: Redis, stream: str) -> Iterator[list[Entry]]:
    """What there is, from the stream's start; an empty list when nothing came for a second."""
    last: bytes | str = BEFORE_FIRST
    while True:
        answer = client.xread({stream: last}, count=BATCH, block=1_000)
        entries = answer[0][1] if answer else []
        if entries:
            last = entries[-1][0]
        yield entries
