"""A member of a consumer group: kafka-python."""

import time

import member_loop
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaConnectionError
from kafka.structs import OffsetAndMetadata
from member_loop import Offsets, Records

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class KafkaPythonMember(ConsumerRebalanceListener):
    def __init__(self, settings: member_loop.Settings, story: member_loop.Story) -> None:
        self._topic, self._story = settings.topic, story
        self._consumer = KafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            group_id=settings.group,
            client_id=settings.name,
            partition_assignment_strategy=[ASSIGNORS[settings.assignor]],
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
        )
        self._consumer.subscribe([settings.topic], listener=self)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        metadata = self._consumer.group_metadata()
        partitions = {one.partition for one in assigned}
        self._story.assigned(partitions, generation=metadata.generation_id, member=metadata.member_id)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._story.revoked({one.partition for one in revoked})

    def poll(self) -> tuple[int, Records]:
        try:
            polled = self._consumer.poll(timeout_ms=int(member_loop.POLL_S * 1000), max_records=100)
        except KafkaConnectionError:  # Now and then it says so when the only broker is away, instead of trying again.
            time.sleep(member_loop.POLL_S)
            return self._story.generation, []
        records = [(m.partition, m.offset, m.value.decode()) for messages in polled.values() for m in messages]
        return self._story.generation, records

    def commit(self, offsets: Offsets) -> None:
        self._consumer.commit(
            {
                TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
                for partition, offset in offsets.items()
            }
        )

    def close(self) -> None:
        self._consumer.close()


if __name__ == "__main__":
    told = member_loop.Story()
    member_loop.run(KafkaPythonMember(member_loop.Settings(), told), told)
