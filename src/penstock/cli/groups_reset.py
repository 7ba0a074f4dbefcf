"""`penstock groups reset`: move a group to other offsets, after showing where."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.confirm import confirm
from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    TIMEOUT_S,
    AsJson,
    BootstrapServer,
    GroupId,
    admin_client,
    command,
    complete_topics,
    explained,
    hint_for,
    kafka_admin,
)
from penstock.cli.group_offsets import committed_offsets
from penstock.cli.group_view import INACTIVE, describe_groups
from penstock.cli.offsets import Offsets, Partition, offsets_at, partitions_by_topic
from penstock.cli.output import Failure, plural, print_json, print_table
from penstock.cli.reset_plan import Move, NothingToShift, Shift, parse_partitions, plan_reset
from penstock.cli.start_at import Kind, StartAt, parse_start

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def reset(
    group: GroupId,
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,P]",
            help="Topic to move in, all its partitions or those given; repeat for more.",
            autocompletion=complete_topics,
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset (42), before the end (-10), a time (2026-01-31T08:00, "
            "milliseconds since 1970) or an age (15m, 1h, 2d).",
        ),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="N", help="So many records forward, or back (-N), from committed.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Move a group without members to other offsets: read again, or skip.

    \b
    Examples:
      penstock groups reset billing --topic orders --to earliest
      penstock groups reset billing --topic orders:0,2 --to 2026-01-31T08:00 --dry-run
      penstock groups reset billing --topic orders --topic prices --to latest --yes
      penstock groups reset billing --topic orders --shift -100
    """
    target = _target(to, shift)
    wanted = [_parsed(text) for text in topic]
    admin = admin_client(bootstrap_server)
    doing = f"reset group '{group}'"
    with explained(doing, bootstrap_server, group=group):
        is_new = _check_inactive(admin, group, bootstrap_server)
        partitions = _partitions(admin, wanted, bootstrap_server)
        moves = _plan(admin, group, target, partitions, bootstrap_server)
    if not json:
        _print_plan(group, moves, is_new)
    if not dry_run:
        if not yes:
            confirm(f"Move {group} so?", "Moving a group makes it read records again or skip them")
        with explained(doing, bootstrap_server, group=group):
            _alter(admin, group, moves)
    if json:
        print_json({"group": group, "reset": not dry_run, "partitions": [move._asdict() for move in moves]})
    elif dry_run:
        print("\nNothing was changed.")
    else:
        print(f"\nMoved {group} in {plural(len(moves), 'partition')}.")


def _target(to: str | None, shift: int | None) -> StartAt | Shift:
    if shift is not None and to is None:
        return Shift(shift)
    if to is None or shift is not None:
        raise Failure(
            "--to and --shift exclude each other." if to is not None else "It is not said where to move to.",
            hint="Give --to earliest, latest, an offset, a time or an age, or --shift N.",
            code="USAGE",
        )
    try:
        return parse_start(to, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise Failure(f"{error}.", hint="For example: --to 1h", code="USAGE") from error


def _parsed(text: str) -> tuple[str, list[int] | None]:
    try:
        return parse_partitions(text)
    except ValueError as error:
        raise Failure(
            f"--topic {text}: {error}.", hint="For example: --topic orders, or --topic orders:0,2", code="USAGE"
        ) from error


def _check_inactive(admin: "AdminClient", group: str, bootstrap_server: str) -> bool:
    """Whether the group is yet to be made; Failure while it has members, who would commit over the reset."""
    found = describe_groups(admin, [group]).get(group)
    if found is None or found.state in INACTIVE:
        return found is None
    raise Failure(
        f"Cannot reset group '{group}': it is {found.state} with {plural(len(found.members), 'member')}, "
        "and offsets can be moved only while nobody reads.",
        hint=hint_for("NON_EMPTY_GROUP", bootstrap_server, "TOPIC", group),
        code="NON_EMPTY_GROUP",
    )


def _partitions(
    admin: "AdminClient", wanted: list[tuple[str, list[int] | None]], bootstrap_server: str
) -> list[Partition]:
    # Also those without a leader: to pass over them in silence would leave a part of the group where it was.
    there = partitions_by_topic(admin, led_only=False)
    chosen: set[Partition] = set()
    for topic, numbers in wanted:
        if topic not in there:
            raise Failure(
                f"There is no topic '{topic}'.",
                hint=hint_for("UNKNOWN_TOPIC_OR_PART", bootstrap_server, topic),
                code="UNKNOWN_TOPIC_OR_PART",
            )
        asked = there[topic] if numbers is None else [(topic, number) for number in numbers]
        for partition in asked:
            if partition not in there[topic]:
                raise Failure(
                    f"Topic '{topic}' has no partition {partition[1]}.",
                    hint=f"See: {command(f'topics describe {topic}', bootstrap_server)}",
                    code="_UNKNOWN_PARTITION",
                )
        chosen.update(asked)
    return sorted(chosen)


def _plan(
    admin: "AdminClient", group: str, target: StartAt | Shift, partitions: list[Partition], bootstrap_server: str
) -> list[Move]:
    spec = kafka_admin().OffsetSpec
    at_time: Offsets = {}
    if isinstance(target, StartAt) and target.kind is Kind.TIME:
        at_time = offsets_at(admin, partitions, spec.for_timestamp(target.number))
    starts, ends = offsets_at(admin, partitions, spec.earliest()), offsets_at(admin, partitions, spec.latest())
    for topic, number in partitions:
        if (topic, number) not in starts or (topic, number) not in ends:
            raise Failure(
                f"Cannot reset group '{group}': partition {number} of '{topic}' was deleted meanwhile.",
                hint=hint_for("UNKNOWN_TOPIC_OR_PART", bootstrap_server, topic),
                code="UNKNOWN_TOPIC_OR_PART",
            )
    try:
        return plan_reset(
            target,
            partitions,
            committed=committed_offsets(admin, [group])[group],
            starts=starts,
            ends=ends,
            at_time=at_time,
        )
    except NothingToShift as error:
        topic, number = error.partition
        raise Failure(
            f"Cannot shift group '{group}': it has committed nothing in partition {number} of '{topic}'.",
            hint=f"Say where with --to, or see what it has: {command(f'groups lag {group}', bootstrap_server)}",
            code="NO_OFFSET",
        ) from error


def _print_plan(group: str, moves: list[Move], is_new: bool) -> None:
    if is_new:
        print(f"There is no group '{group}' yet: this makes it.")
    print_table(["TOPIC", "PARTITION", "FROM", "TO"], [move[:4] for move in moves])
    for move in moves:
        if move.clamped_from is not None:
            print(f"{move.topic}:{move.partition} does not reach {move.clamped_from}: {move.to} is the nearest.")


def _alter(admin: "AdminClient", group: str, moves: list[Move]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    offsets = [TopicPartition(move.topic, move.partition, move.to) for move in moves]
    futures = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, offsets)], request_timeout=TIMEOUT_S
    )
    for partition in futures[group].result().topic_partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)
