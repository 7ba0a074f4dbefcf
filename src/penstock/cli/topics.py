"""`penstock topics`: create, list, describe, watch, alter and delete topics."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.confirm import confirm
from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    TIMEOUT_S,
    AsJson,
    BootstrapServer,
    TopicName,
    TopicNames,
    admin_client,
    command,
    explained,
    kafka_admin,
    prompt_interrupt,
)
from penstock.cli.deletion import finish_deletion
from penstock.cli.offsets import offsets_at
from penstock.cli.output import Failure, plural, print_json, print_table
from penstock.cli.replication_factor import change_replication_factor
from penstock.cli.topics_watch import watch

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import TopicMetadata

commands = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list, describe, watch, alter and delete topics."
)

DURABILITY_KEY = "penstock.durability"
DURABILITY_OS_IN_WORDS = (
    "acknowledged messages are with the operating system, not yet on disk: a power cut can lose the newest ones"
)

Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Topic configuration; repeat for more.")
]


@commands.command()
def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the new topic.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, help="How many partitions.", show_default="the broker's"
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            help="Copies of each partition.",
            show_default="the broker's",
        ),
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed when the topic is there already.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Create a topic.

    \b
    Examples:
      penstock topics create orders
      penstock topics create orders --partitions 12 --config retention.ms=86400000
      penstock topics create prices --config cleanup.policy=compact --if-not-exists
    """
    configs = pairs(config)
    admin = admin_client(bootstrap_server)
    from confluent_kafka import KafkaException

    topic = kafka_admin().NewTopic(
        name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        config=configs,
    )
    created = True
    with explained(f"create topic '{name}'", bootstrap_server, name):
        try:
            _wait(admin.create_topics([topic], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S))
        except KafkaException as exception:
            if not (if_not_exists and exception.args[0].name() == "TOPIC_ALREADY_EXISTS"):
                raise
            created = False
    if json:
        print_json({"topic": name, "created": created})
    elif created:
        print(f"Created topic {name}.")
    else:
        print(f"Topic {name} exists already.")


@commands.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Show internal topics too (names that start with __).")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """List the topics.

    \b
    Examples:
      penstock topics list
      penstock topics list --internal
      penstock topics list --json | jq -r '.[].name'
    """
    admin = admin_client(bootstrap_server)
    with explained("list the topics", bootstrap_server), prompt_interrupt():
        found = admin.list_topics(timeout=TIMEOUT_S).topics
    shown = sorted(name for name in found if internal or not name.startswith("__"))
    rows = [(name, len(found[name].partitions), _replication_factor(found[name])) for name in shown]
    if json:
        print_json([{"name": row[0], "partitions": row[1], "replication_factor": row[2]} for row in rows])
    elif rows:
        print_table(["TOPIC", "PARTITIONS", "REPLICATION"], rows)
    else:
        print(f"There are no topics yet. Create one with: {command('topics create hello', bootstrap_server)}")


@commands.command()
def describe(
    names: TopicNames,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Show partitions, leaders, replicas, offsets and configuration that differs from the default.

    \b
    Examples:
      penstock topics describe orders
      penstock topics describe orders prices --json
    """
    admin = admin_client(bootstrap_server)
    described = [_describe(admin, name, bootstrap_server) for name in names]
    if json:
        print_json(described)
        return
    for index, topic in enumerate(described):
        if index:
            print()
        _print_description(topic)


commands.command()(watch)


@commands.command()
def alter(
    name: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="New number of partitions; it can only grow."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", metavar="N", min=1, help="New number of copies of each partition."),
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY", help="Go back to the default; repeat for more."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Add partitions, change the number of replicas or the configuration.

    \b
    Examples:
      penstock topics alter orders --partitions 24
      penstock topics alter orders --replication-factor 3
      penstock topics alter orders --config retention.ms=604800000 --delete-config max.message.bytes
    """
    configs = pairs(config)
    deleted = delete_config or []
    if partitions is None and replication_factor is None and not configs and not deleted:
        raise Failure(
            "There is nothing to alter.",
            hint="Give --partitions N, --replication-factor N, --config KEY=VALUE or --delete-config KEY.",
            code="USAGE",
        )
    admin = admin_client(bootstrap_server)
    if configs or deleted:
        with explained(f"alter the configuration of '{name}'", bootstrap_server, name):
            _wait(admin.incremental_alter_configs([_changes(name, configs, deleted)], request_timeout=TIMEOUT_S))
    if partitions is not None:
        with explained(f"give '{name}' {plural(partitions, 'partition')}", bootstrap_server, name):
            _wait(admin.create_partitions([kafka_admin().NewPartitions(name, partitions)], request_timeout=TIMEOUT_S))
    if replication_factor is not None:
        change_replication_factor(name, replication_factor, bootstrap_server, quiet=json)
    if json:
        print_json({"topic": name, "altered": True})
    else:
        print(f"Altered topic {name}.")


@commands.command()
def delete(
    names: TopicNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Delete topics and all their messages.

    \b
    Examples:
      penstock topics delete orders
      penstock topics delete orders prices --yes
    """
    admin = admin_client(bootstrap_server)
    if not yes:
        confirm(f"Delete {', '.join(names)} with all messages?", "Deleting a topic deletes its messages")
    futures = admin.delete_topics(names, operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
    finish_deletion("topic", futures, bootstrap_server, as_json=json)


def _describe(admin: "AdminClient", name: str, bootstrap_server: str) -> dict[str, Any]:
    from confluent_kafka import TopicCollection

    kafka = kafka_admin()
    with explained(f"describe topic '{name}'", bootstrap_server, name):
        # Not by `list_topics`: a broker that creates topics on demand would create this one.
        asked = admin.describe_topics(TopicCollection([name]), request_timeout=TIMEOUT_S)
        config_futures = admin.describe_configs(
            [kafka.ConfigResource(kafka.ResourceType.TOPIC, name)], request_timeout=TIMEOUT_S
        )
        partitions = sorted(asked[name].result().partitions, key=lambda partition: partition.id)
        # A partition without a leader has nobody to ask for its offsets; the others still answer.
        led = [(name, partition.id) for partition in partitions if partition.leader is not None]
        starts = offsets_at(admin, led, kafka.OffsetSpec.earliest())
        ends = offsets_at(admin, led, kafka.OffsetSpec.latest())
        entries: dict[str, Any] = next(iter(config_futures.values())).result()
    durability = entries.get(DURABILITY_KEY)
    return {
        "name": name,
        "replication_factor": max((len(partition.replicas) for partition in partitions), default=0),
        "partitions": [
            {
                "partition": partition.id,
                "leader": partition.leader.id if partition.leader is not None else None,
                "replicas": [node.id for node in partition.replicas],
                "isr": [node.id for node in partition.isr],
                "start_offset": starts.get((name, partition.id)),
                "end_offset": ends.get((name, partition.id)),
            }
            for partition in partitions
        ],
        "configs": {key: entry.value for key, entry in sorted(entries.items()) if not entry.is_default},
        "durability": durability.value if durability is not None else None,
    }


def _print_description(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    print(f"{topic['name']}: {plural(len(partitions), 'partition')}, replication factor {topic['replication_factor']}")
    if topic["durability"] == "os":
        print(f"Durability: {DURABILITY_OS_IN_WORDS} ({DURABILITY_KEY}=os).")
    print()
    print_table(
        ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END"],
        [
            (
                p["partition"],
                "none" if p["leader"] is None else p["leader"],
                ",".join(map(str, p["replicas"])),
                ",".join(map(str, p["isr"])),
                "?" if p["start_offset"] is None else p["start_offset"],
                "?" if p["end_offset"] is None else p["end_offset"],
            )
            for p in partitions
        ],
    )
    if topic["configs"]:
        print()
        print_table(["CONFIG", "VALUE"], topic["configs"].items())


def _replication_factor(metadata: "TopicMetadata") -> int:
    return max((len(partition.replicas) for partition in metadata.partitions.values()), default=0)


def _changes(name: str, configs: dict[str, str], deleted: Sequence[str]) -> Any:
    kafka = kafka_admin()
    entries = [
        kafka.ConfigEntry(key, value, incremental_operation=kafka.AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    # The value of a deletion is not used, but librdkafka wants one.
    entries += [kafka.ConfigEntry(key, "", incremental_operation=kafka.AlterConfigOpType.DELETE) for key in deleted]
    return kafka.ConfigResource(kafka.ResourceType.TOPIC, name, incremental_configs=entries)


def pairs(options: Sequence[str] | None) -> dict[str, str]:
    """The keys and values of `--config KEY=VALUE`, given any number of times."""
    found = {}
    for option in options or ():
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise Failure(
                f"--config {option} has no value.",
                hint="Give KEY=VALUE, for example --config retention.ms=86400000.",
                code="USAGE",
            )
        found[key.strip()] = value.strip()
    return found


def _wait(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result()
