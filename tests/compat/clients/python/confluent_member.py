"""A member of a consumer group: confluent-kafka (librdkafka)."""

import struct

import member_loop
from confluent_kafka import Consumer, KafkaException, TopicPartition
from member_loop import Offsets, Records


class ConfluentMember:
    def __init__(self, settings: member_loop.Settings, story: member_loop.Story) -> None:
        self._topic, self._story = settings.topic, story
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap,
                "group.id": settings.group,
                "client.id": settings.name,
                **_protocol(settings),
                "max.poll.interval.ms": 60_000,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.subscribe(
            [settings.subscription], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        generation, member = _generation_and_member(consumer)
        self._story.assigned({one.partition for one in partitions}, generation=generation, member=member)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._story.revoked({one.partition for one in partitions})

    def poll(self) -> tuple[int, Records]:
        records: Records = []
        for message in self._consumer.consume(100, member_loop.POLL_S):
            if message.error() is None:
                records.append((message.partition(), message.offset(), message.value().decode()))
        return self._story.generation, records

    def commit(self, offsets: Offsets) -> None:
        wanted = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        for done in self._consumer.commit(offsets=wanted, asynchronous=False):
            if done.error is not None:
                raise KafkaException(done.error)

    def close(self) -> None:
        self._consumer.close()


def _protocol(settings: member_loop.Settings) -> dict[str, str | int]:
    if settings.server_assignor is not None:
        return {"group.protocol": "consumer", "group.remote.assignor": settings.server_assignor}
    return {
        "partition.assignment.strategy": settings.assignor,
        "session.timeout.ms": settings.session_ms,
        "heartbeat.interval.ms": settings.heartbeat_ms,
    }


def _generation_and_member(consumer: Consumer) -> tuple[int, str]:
    """From librdkafka's serialised group metadata: "CGMDv2:", int32 of this machine, group, 0, member, 0, instance."""
    metadata = consumer.consumer_group_metadata()
    prefix = b"CGMDv2:"
    assert metadata.startswith(prefix), metadata
    (generation,) = struct.unpack_from("=i", metadata, len(prefix))
    _, member, *_ = metadata[len(prefix) + 4 :].split(b"\0")
    return generation, member.decode()


if __name__ == "__main__":
    told = member_loop.Story()
    member_loop.run(ConfluentMember(member_loop.Settings(), told), told)
