"""What a Produce request holds, to be compared: the class itself is made for speed and has no equality."""

from penstock.wire.produce import ProduceRequest


def produce_fields(request: ProduceRequest) -> tuple[object, ...]:
    partitions = [(item.topic, item.partition, item.records) for item in request.partitions]
    return request.transactional_id, request.acks, request.timeout_ms, request.length_at, partitions
