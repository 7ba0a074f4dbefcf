"""Changing how many replicas a topic's partitions have: new ones are copied, superfluous ones go."""

from penstock.cli.cluster_view import look_to_plan
from penstock.cli.connection import command, hint_for
from penstock.cli.move_plan import TooFewBrokers, plan_factor
from penstock.cli.moves import carry_out
from penstock.cli.output import Failure
from penstock.cli.wire_client import WireClient


def change_replication_factor(topic: str, factor: int, bootstrap_server: str, *, quiet: bool) -> None:
    """Return when every partition of the topic has so many replicas, all of them in sync."""
    client = WireClient(bootstrap_server)
    try:
        view = look_to_plan(client)
        if not any(partition.topic == topic for partition in view.partitions):
            raise Failure(
                f"There is no topic '{topic}'.",
                hint=hint_for("UNKNOWN_TOPIC_OR_PART", bootstrap_server, topic),
                code="UNKNOWN_TOPIC_OR_PART",
            )
        try:
            plan = plan_factor(view.layout, view.racks, factor, topic)
        except TooFewBrokers as error:
            raise Failure(
                f"'{topic}' cannot have so many replicas: {error}.",
                hint=f"See the brokers: {command('brokers list', bootstrap_server)}",
                code="INVALID_REPLICATION_FACTOR",
            ) from error
        again = command(f"topics alter {topic} --replication-factor {factor}", bootstrap_server)
        carry_out(client, view, plan, doing=f"Replicating {topic}", again=again, quiet=quiet)
    finally:
        client.close()
