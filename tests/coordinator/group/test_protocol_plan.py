"""Which protocol a group uses, and what a subscription says."""

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.protocol_plan import ProtocolCounts
from penstock.coordinator.group.subscription import topics_of

names = st.lists(st.sampled_from("abcd"), unique=True, min_size=1).map(lambda chosen: [*chosen, "common"])


@given(st.lists(names, min_size=1, max_size=8), st.data())
def test_the_chosen_protocol_is_common_to_all_and_no_other_has_more_votes(
    preferences: list[list[str]], data: st.DataObject
) -> None:
    counts = ProtocolCounts()
    members = [[Protocol(name, b"") for name in preference] for preference in preferences]
    for member in members:
        counts.add(member)
    gone = data.draw(st.integers(0, len(members) - 1))
    for member in members[:gone]:
        counts.remove(member)
    left = members[gone:]
    common = set.intersection(*({protocol.name for protocol in member} for member in left))
    assert {name for name in "abcd" if counts.is_common(name)} == common - {"common"}
    votes = [next(protocol.name for protocol in member if protocol.name in common) for member in left]
    chosen = counts.select(left)
    assert votes.count(chosen) == max(map(votes.count, votes))


# Written by Kafka 4.3.1's ConsumerProtocol, versions 0 to 3, for the topics `orders` and `pay`.
KAFKA_SUBSCRIPTIONS = [
    "00000000000200066f726465727300037061790000000109",
    "00010000000200066f7264657273000370617900000001090000000100066f72646572730000000100000001",
    "00020000000200066f7264657273000370617900000001090000000100066f7264657273000000010000000100000004",
    "00030000000200066f7264657273000370617900000001090000000100066f726465727300000001000000010000000400027231",
]


def test_topics_are_read_from_every_version_of_a_subscription() -> None:
    assert {topics_of(bytes.fromhex(text)) for text in KAFKA_SUBSCRIPTIONS} == {frozenset({"orders", "pay"})}


@given(st.lists(st.text(max_size=20), max_size=5), st.binary(max_size=20))
def test_topics_are_read_from_what_aiokafka_writes(topics: list[str], user_data: bytes) -> None:
    assert topics_of(ConsumerProtocolMemberMetadata(0, topics, user_data).encode()) == frozenset(topics)


@given(st.binary())
def test_any_bytes_are_a_subscription_or_none(metadata: bytes) -> None:
    topics_of(metadata)
    topics_of(b"\0\0" + metadata)


def test_a_subscription_that_ends_early_is_none() -> None:
    whole = bytes.fromhex(KAFKA_SUBSCRIPTIONS[0])
    assert all(topics_of(whole[:end]) is None for end in range(len(whole) - 5))
    assert topics_of(b"\0\0\x7f\xff\xff\xff") is None
    assert topics_of(b"\xff\xff\0\0\0\0") is None
    assert topics_of(b"\0\0\0\0\0\1\0\1\xff") is None
