"""A consumer of one topic with a fetch session, which reads on and on as Java's does."""

from uuid import UUID

from in_process_broker import Client, fetch_fields

from penstock.server.api import ApiKey
from penstock.wire.batch import read_header
from penstock.wire.codec import Struct

VERSION = 17
FETCH_BYTES = 300_000  # Of a partition: more than is worth sending from a file.


class SessionReader:
    def __init__(self, client: Client, topic_id: UUID, partitions: int = 1) -> None:
        self.client = client
        self.topic_id = topic_id
        self.session = (0, 0)
        self.offsets = dict.fromkeys(range(partitions), 0)
        self.read = dict.fromkeys(range(partitions), b"")

    async def fetch(self) -> Struct:
        """Ask for what follows in all partitions, and take it."""
        wanted = [(self.topic_id, number, offset) for number, offset in self.offsets.items()]
        fields = fetch_fields(
            *wanted, session=self.session, by_id=True, max_bytes=50 << 20, partition_max_bytes=FETCH_BYTES
        )
        answer = await self.client.ask(ApiKey.FETCH, VERSION, **fields)
        self.session = (answer.session_id, self.session[1] + 1)
        for part in (part for topic in answer.responses for part in topic.partitions):
            self._take(part.partition_index, bytes(part.records or b""))
        return answer

    def _take(self, number: int, records: bytes) -> None:
        self.read[number] += records
        while records:
            header = read_header(records)
            self.offsets[number] = header.last_offset + 1
            records = records[header.size :]
