"""`partition.metadata`: which topic id a partition directory belongs to, so a re-created topic shows no old data."""

import base64
from uuid import UUID

from penstock.storage.format import PARTITION_METADATA
from penstock.storage.fs import FileSystem


def encode_topic_id(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {kafka_uuid(topic_id)}\n".encode()


def read_topic_id(fs: FileSystem, directory: str) -> UUID | None:
    """The directory's topic id; None when the file is missing or damaged."""
    path = f"{directory}/{PARTITION_METADATA}"
    if not fs.exists(path):
        return None
    for line in fs.read_all(path).decode(errors="replace").splitlines():
        name, _, value = line.partition(": ")
        if name == "topic_id" and len(value) == 22:
            try:
                return UUID(bytes=base64.b64decode(value + "==", altchars=b"-_", validate=True))
            except ValueError:
                return None
    return None


def kafka_uuid(value: UUID) -> str:
    """A UUID as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
