"""The topics that a member subscribes to, read from the metadata that Kafka's consumers send (ConsumerProtocol).

    version i16 | topics i32 count, each a string | user_data … and what later versions add

Every version begins like this, so nothing behind the topics is looked at. To the coordinator the bytes are otherwise
the members' own affair.
"""

import struct

CONSUMER_PROTOCOL = "consumer"  # The protocol type of Kafka's consumers.

_HEAD = struct.Struct(">hi")
_INT16 = struct.Struct(">h")


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None when the bytes are not a subscription."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0 or count > (len(metadata) - _HEAD.size) // _INT16.size:
            return None
        position = _HEAD.size
        topics = []
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, position)
            position += _INT16.size
            end = position + length
            if length < 0 or end > len(metadata):
                return None
            topics.append(metadata[position:end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
