"""Groups as the coordinator describes them, in Kafka's words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.connection import TIMEOUT_S, explained, hint_for
from penstock.cli.offsets import Partition
from penstock.cli.output import Failure

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

DEAD = "Dead"
INACTIVE = ("Empty", DEAD)  # States in which nobody reads, so offsets may be moved.


class Coordinator(NamedTuple):
    id: int
    host: str
    port: int


class MemberView(NamedTuple):
    member_id: str
    instance_id: str | None  # Of a static member (group.instance.id).
    client_id: str
    host: str
    partitions: list[Partition]


class GroupView(NamedTuple):
    state: str
    type: str  # Which protocol its members speak: classic, or consumer (KIP-848).
    assignor: str
    coordinator: Coordinator | None
    members: list[MemberView]

    @property
    def partitions(self) -> list[Partition]:
        """All that its members were given."""
        return [partition for member in self.members for partition in member.partitions]


def list_groups(admin: "AdminClient") -> list[str]:
    """The ids of all groups, sorted."""
    from confluent_kafka import KafkaException

    result = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result()
    for error in result.errors or ():  # A broker that did not answer: the list would have a hole that nobody sees.
        raise error if isinstance(error, KafkaException) else KafkaException(error)
    return sorted(group.group_id for group in result.valid or ())


def describe_groups(admin: "AdminClient", groups: Sequence[str]) -> dict[str, GroupView]:
    """Those of the groups that exist."""
    from confluent_kafka import KafkaException

    if not groups:
        return {}
    found = {}
    for name, future in admin.describe_consumer_groups(list(groups), request_timeout=TIMEOUT_S).items():
        try:
            view = _view(future.result())
        except KafkaException as exception:
            if exception.args[0].name() != "GROUP_ID_NOT_FOUND":
                raise
            continue
        if view.state != DEAD:  # Before DescribeGroups v6 this is how a group that nobody knows is described.
            found[name] = view
    return found


def describe_group(admin: "AdminClient", name: str, bootstrap_server: str) -> GroupView:
    """The group; Failure when there is none."""
    with explained(f"describe group '{name}'", bootstrap_server, group=name):
        found = describe_groups(admin, [name])
    if name not in found:
        raise no_such_group(name, bootstrap_server)
    return found[name]


def no_such_group(name: str, bootstrap_server: str) -> Failure:
    return Failure(
        f"There is no group '{name}'.",
        hint=hint_for("GROUP_ID_NOT_FOUND", bootstrap_server, "TOPIC"),
        code="GROUP_ID_NOT_FOUND",
    )


def _view(group: Any) -> GroupView:
    node = group.coordinator
    return GroupView(
        _kafka_name(group.state),
        group.type.name.lower(),
        group.partition_assignor,
        Coordinator(node.id, node.host, node.port) if node is not None else None,
        [_member(member) for member in group.members],
    )


def _kafka_name(state: Any) -> str:
    """`PREPARING_REBALANCING` is confluent-kafka's spelling of Kafka's PreparingRebalance."""
    words: str = state.name.replace("REBALANCING", "REBALANCE")
    return "".join(word.capitalize() for word in words.split("_"))


def _member(member: Any) -> MemberView:
    partitions = [(partition.topic, partition.partition) for partition in member.assignment.topic_partitions]
    return MemberView(member.member_id, member.group_instance_id, member.client_id, member.host, sorted(partitions))
