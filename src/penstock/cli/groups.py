"""`penstock groups`: list, describe and delete consumer groups, see how far they are behind, and move them."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.confirm import confirm
from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    TIMEOUT_S,
    AsJson,
    BootstrapServer,
    GroupId,
    GroupIds,
    admin_client,
    explained,
)
from penstock.cli.deletion import finish_deletion
from penstock.cli.group_offsets import group_lags, total_lag
from penstock.cli.group_view import describe_group, describe_groups, list_groups
from penstock.cli.groups_lag import lag
from penstock.cli.groups_reset import reset
from penstock.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

commands = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, describe, measure, move and delete consumer groups."
)


class State(StrEnum):
    STABLE = "Stable"
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    DEAD = "Dead"


@commands.command("list")
def list_command(
    state: Annotated[
        list[State] | None,
        typer.Option("--state", "-s", case_sensitive=False, help="Only groups in this state; repeat for more."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """List the consumer groups.

    \b
    Examples:
      penstock groups list
      penstock groups list --state empty
      penstock groups list --json | jq -r '.[].group'
    """
    admin = admin_client(bootstrap_server)
    with explained("list the groups", bootstrap_server):
        listed = list_groups(admin)
        described = describe_groups(admin, listed)
    shown = [
        {"group": name, "state": group.state, "type": group.type, "members": len(group.members)}
        for name, group in sorted(described.items())
        if not state or group.state in state
    ]
    if json:
        print_json(shown)
    elif shown:
        print_table(["GROUP", "STATE", "TYPE", "MEMBERS"], [list(group.values()) for group in shown])
    elif state:
        print(f"No group is {' or '.join(state)}.")
    else:
        print("There are no groups yet. A consumer makes one when it joins or commits.")


@commands.command()
def describe(
    group: GroupId,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Show a group's state, its members with their partitions, and how far it has read.

    \b
    Examples:
      penstock groups describe billing
      penstock groups describe billing --json | jq '.total_lag'
    """
    description = _describe(admin_client(bootstrap_server), group, bootstrap_server)
    if json:
        print_json(description)
    else:
        _print_description(description)


commands.command()(lag)
commands.command()(reset)


@commands.command()
def delete(
    groups: GroupIds,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Delete groups that have no members, with their committed offsets.

    \b
    Examples:
      penstock groups delete billing
      penstock groups delete billing audit --yes
    """
    groups = list(dict.fromkeys(groups))
    admin = admin_client(bootstrap_server)
    if not yes:
        confirm(
            f"Delete {', '.join(groups)} with all committed offsets?", "Deleting a group forgets how far it has read"
        )
    futures = admin.delete_consumer_groups(groups, request_timeout=TIMEOUT_S)
    finish_deletion("group", futures, bootstrap_server, as_json=json)


def _describe(admin: "AdminClient", name: str, bootstrap_server: str) -> dict[str, Any]:
    group = describe_group(admin, name, bootstrap_server)
    owners = {partition: member for member in group.members for partition in member.partitions}
    with explained(f"describe group '{name}'", bootstrap_server, group=name):
        lags = group_lags(admin, {name: group.partitions})[name]
    return {
        "group": name,
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor,
        "coordinator": group.coordinator._asdict() if group.coordinator is not None else None,
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [{"topic": topic, "partition": number} for topic, number in member.partitions],
            }
            for member in group.members
        ],
        "partitions": [
            {
                **lag._asdict(),
                "lag": lag.lag,
                "member": owner.member_id if (owner := owners.get((lag.topic, lag.partition))) else None,
            }
            for lag in lags
        ],
        "total_lag": total_lag(lags),
    }


def _print_description(group: dict[str, Any]) -> None:
    assignor = f", assignor {group['assignor']}" if group["assignor"] else ""
    print(f"{group['group']}: {group['state']}, {group['type']} protocol{assignor}")
    coordinator = group["coordinator"]
    if coordinator is not None:
        print(f"Coordinator: broker {coordinator['id']} at {coordinator['host']}:{coordinator['port']}")
    print(f"{plural(len(group['members']), 'member')}, {plural(group['total_lag'], 'record')} behind")
    if group["members"]:
        print()
        print_table(
            ["MEMBER", "CLIENT", "HOST", "PARTITIONS"],
            [(m["member"], m["client"], m["host"], _assignment(m["partitions"])) for m in group["members"]],
        )
    if group["partitions"]:
        print()
        print_table(
            ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"],
            [
                (p["topic"], p["partition"], p["committed"], p["end"], p["lag"], p["member"])
                for p in group["partitions"]
            ],
        )


def _assignment(partitions: list[dict[str, Any]]) -> str:
    """As Kafka's tool writes it: orders:0,1 prices:2."""
    by_topic: dict[str, list[str]] = {}
    for partition in partitions:
        by_topic.setdefault(partition["topic"], []).append(str(partition["partition"]))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()) or "-"
