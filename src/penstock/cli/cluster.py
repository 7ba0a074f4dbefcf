"""`penstock cluster`: a whole cluster on this machine, and how any cluster is doing."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    TIMEOUT_S,
    AsJson,
    BootstrapServer,
    admin_client,
    explained,
    prompt_interrupt,
)
from penstock.cli.output import Failure, note, plural, print_json, print_table, program
from penstock.cli.topics import pairs

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata

    from penstock.local.cluster import LocalBroker, LocalCluster

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a cluster on this machine, and see how a cluster is doing.",
)

DEFAULT_BASE_PORT = 9092
DEFAULT_DATA = "./penstock-cluster"
BROKERS_MAX = 20  # Each is a process of 40 MB or more; this is for one machine.
PORT_MAX = 65_535
LOOK_S = 0.2  # How soon the end of a broker is reported.


@commands.command()
def up(
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", min=1, max=BROKERS_MAX, help="How many brokers.")
    ] = 3,
    zookeepers: Annotated[
        int | None,
        typer.Option(
            "--zookeepers",
            metavar="1|3",
            min=1,
            max=3,
            help="How many ZooKeeper nodes.",
            show_default="as before, or 1",
        ),
    ] = None,
    base_port: Annotated[
        int,
        typer.Option("--base-port", metavar="PORT", min=1, max=PORT_MAX, help="Of broker 1; the next ones follow."),
    ] = DEFAULT_BASE_PORT,
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Directory for everything; made if missing.")
    ] = DEFAULT_DATA,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="Setting of all brokers; repeat for more."),
    ] = None,
) -> int:
    """Run a cluster on this machine until Ctrl-C: ZooKeeper and brokers, for development.

    Each broker is a process of its own. What they log is in DIR/broker-N.log, and a later start on the same DIR finds
    all topics and messages again. ZooKeeper needs Java 11 or later, and is fetched once (4 MB).

    \b
    Examples:
      penstock cluster up
      penstock cluster up --brokers 5 --zookeepers 3 --base-port 19092 --data /tmp/cluster
      penstock cluster up --config min.insync.replicas=1 --config num.partitions=6
    """
    from penstock.server.data_dir import DataDirInUse, DataDirLock

    directory = Path(data).absolute()
    ports = range(base_port, base_port + brokers)
    settings = pairs(config)
    nodes = _zookeepers(zookeepers, directory)
    _check_ports(ports)
    try:
        with DataDirLock(str(directory)):
            return _run(_cluster(directory, nodes, ports, settings))
    except DataDirInUse as error:
        raise Failure(
            f"Cannot use the directory {data}: another cluster runs in it.",
            hint="Stop that one, or give this one its own directory with --data DIR.",
            code="DATA_DIRECTORY",
        ) from error
    except OSError as error:
        raise Failure(
            f"Cannot use the directory {data}: {error.strerror or error}.",
            hint="Make it writable for this user, free some space, or choose another one with --data DIR.",
            code="DATA_DIRECTORY",
        ) from error


def _zookeepers(asked: int | None, directory: Path) -> int:
    """How many nodes to start: a cluster keeps the number that it began with."""
    from penstock.local.cluster import zookeepers_of

    existing = zookeepers_of(directory)
    if asked == 2:
        raise Failure(
            "Two ZooKeeper nodes are worse than one: without either of them there is no majority.",
            hint="Give --zookeepers 1 or --zookeepers 3.",
            code="USAGE",
        )
    if asked is not None and existing not in (0, asked):
        # New nodes know nothing, and two of them would be a majority.
        raise Failure(
            f"The cluster in {directory} has {plural(existing, 'ZooKeeper node')}, and that cannot be changed.",
            hint=f"Leave --zookeepers {asked} out, or begin anew with --data DIR.",
            code="USAGE",
        )
    return asked or existing or 1


def _check_ports(ports: range) -> None:
    from penstock.local.cluster import ports_in_use

    if ports[-1] > PORT_MAX:
        raise Failure(f"There is no port {ports[-1]}.", hint="Give a lower --base-port.", code="USAGE")
    used = ports_in_use(ports)
    if used:
        raise Failure(
            f"Cannot listen on {_joined(used)}: somebody else does.",
            hint=f"Stop that process, or choose other ports: {program()} cluster up --base-port {ports[-1] + 1000}",
            code="PORT_IN_USE",
        )


def _cluster(directory: Path, nodes: int, ports: range, config: dict[str, str]) -> "LocalCluster":
    from penstock.base.config import BrokerConfig
    from penstock.base.config_key import InvalidConfig
    from penstock.local.cluster import LocalCluster
    from penstock.local.java import PartMissing

    note("Looking for ZooKeeper and Java ...")
    try:
        cluster = LocalCluster(directory, brokers=len(ports), zookeepers=nodes, base_port=ports[0], config=config)
        for broker in cluster.brokers:
            BrokerConfig.load(broker.settings() | cluster.settings)
    except PartMissing as error:
        raise Failure(
            f"Cannot start ZooKeeper: {error}.",
            hint="A single broker needs neither Java nor ZooKeeper: " + f"{program()} serve",
            code="PART_MISSING",
        ) from error
    except InvalidConfig as error:
        raise Failure(
            f"No broker can start with this configuration: {error}.",
            hint="Settings have Kafka's names, for example: --config num.partitions=6",
            code="INVALID_CONFIG",
        ) from error
    return cluster


def _run(cluster: "LocalCluster") -> int:
    """Exit code of a cluster that has run until it was told to stop: 1 when no broker was left."""
    from penstock.local.cluster import BrokerDidNotStart

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C.
    try:
        note("Starting ...")
        cluster.start()
        _welcome(cluster)
        return _watch(cluster)
    except (BrokerDidNotStart, RuntimeError) as error:
        raise Failure(
            f"The cluster does not start: {error}",
            hint=f"All that was logged is in {cluster.directory}.",
            code="DID_NOT_START",
        ) from error
    except KeyboardInterrupt:
        print("Stopping, one broker after the other. Ctrl-C again: at once.", flush=True)
        try:
            cluster.stop(_report_stop)
        except KeyboardInterrupt:
            print("Killed what was left.", flush=True)
        return 0
    finally:
        cluster.kill()


def _welcome(cluster: "LocalCluster") -> None:
    print_table(
        ["BROKER", "ADDRESS", "PID", "DATA"],
        [(broker.node_id, broker.address, broker.pid, broker.data) for broker in cluster.brokers],
    )
    at = f"-b {cluster.brokers[0].address}"
    print(
        f"\nLogs: {cluster.directory / 'broker-N.log'}\n"
        f"ZooKeeper: {cluster.settings['zookeeper.connect']}\n"
        f"bootstrap.servers: {cluster.bootstrap_servers}\n\n"
        "Ctrl-C stops all of it. In a second terminal:\n"
        f"  {program()} cluster status {at}\n"
        f"  {program()} topics create hello {at}",
        flush=True,
    )


def _watch(cluster: "LocalCluster") -> int:
    """Report what ends by itself, until Ctrl-C or until there is no broker left."""
    running = list(cluster.brokers)
    nodes = list(cluster.zookeeper.nodes)
    while running:
        time.sleep(LOOK_S)
        for broker in [broker for broker in running if broker.exit_code is not None]:
            running.remove(broker)
            _report_end(broker)
        for node in [node for node in nodes if not node.is_running]:
            nodes.remove(node)
            print(f"The ZooKeeper node on {node.address} ended. Its log: {node.directory / 'log'}", flush=True)
    print("No broker is left.", flush=True)
    return 1


def _report_end(broker: "LocalBroker") -> None:
    code = broker.exit_code
    assert code is not None
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    print(
        f"Broker {broker.node_id} {how}. Its log: {broker.log}\n"
        f"  Start it again: {program()} serve --config {broker.properties}",
        flush=True,
    )


def _report_stop(broker: "LocalBroker", in_order: bool) -> None:
    end = "stopped" if in_order else f"did not stop in order; its log: {broker.log}"
    print(f"Broker {broker.node_id} {end}.", flush=True)


@commands.command()
def status(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER, json: AsJson = False) -> None:
    """Show the brokers, who controls, and the partitions with too few replicas in sync or without a leader.

    The exit code is 1 while there are such partitions.

    \b
    Examples:
      penstock cluster status
      penstock cluster status -b localhost:9093,localhost:9094
      penstock cluster status --json | jq '.offline | length'
    """
    admin = admin_client(bootstrap_server)
    with explained("look at the cluster", bootstrap_server), prompt_interrupt():
        found = _view(admin.list_topics(timeout=TIMEOUT_S))
    if json:
        print_json(found)
    else:
        _print_view(found)
    if found["offline"] or found["under_replicated"]:
        raise typer.Exit(1)


def _view(metadata: "ClusterMetadata") -> dict[str, Any]:
    partitions: list[dict[str, Any]] = [
        {
            "topic": name,
            "partition": partition.id,
            "leader": None if partition.leader < 0 else partition.leader,
            "replicas": list(partition.replicas),
            "isr": list(partition.isrs),
        }
        for name, topic in sorted(metadata.topics.items())
        for partition in sorted(topic.partitions.values(), key=lambda partition: partition.id)
    ]
    # Also those that should be there: a broker that is away has its replicas on it all the same.
    nodes = sorted({*metadata.brokers, *(node for partition in partitions for node in partition["replicas"])})
    return {
        "cluster_id": metadata.cluster_id,
        "controller": None if metadata.controller_id < 0 else metadata.controller_id,
        "brokers": [_broker_view(metadata, node, partitions) for node in nodes],
        "topics": len(metadata.topics),
        "partitions": len(partitions),
        "under_replicated": [
            partition for partition in partitions if set(partition["isr"]) < set(partition["replicas"])
        ],
        "offline": [partition for partition in partitions if partition["leader"] is None],
    }


def _broker_view(metadata: "ClusterMetadata", node: int, partitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    broker = metadata.brokers.get(node)
    return {
        "id": node,
        "host": None if broker is None else broker.host,
        "port": None if broker is None else broker.port,
        "leads": sum(partition["leader"] == node for partition in partitions),
        "replicas": sum(node in partition["replicas"] for partition in partitions),
        "in_sync": sum(node in partition["isr"] for partition in partitions),
    }


def _print_view(found: dict[str, Any]) -> None:
    controller = "nobody controls it" if found["controller"] is None else f"broker {found['controller']} controls it"
    print(
        f"Cluster {found['cluster_id']}: {controller}; "
        f"{plural(found['topics'], 'topic')}, {plural(found['partitions'], 'partition')}.\n"
    )
    print_table(
        ["BROKER", "ADDRESS", "LEADS", "REPLICAS", "IN SYNC"],
        [
            (
                b["id"],
                "away" if b["host"] is None else f"{b['host']}:{b['port']}",
                b["leads"],
                b["replicas"],
                b["in_sync"],
            )
            for b in found["brokers"]
        ],
    )
    print()
    bad = list(found["offline"])
    bad += [partition for partition in found["under_replicated"] if partition["leader"] is not None]
    if not bad:
        print("All replicas are in sync, every partition has a leader.")
        return
    print(f"{plural(len(found['offline']), 'partition')} offline, {len(found['under_replicated'])} under-replicated:\n")
    print_table(
        ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR"],
        [
            (
                p["topic"],
                p["partition"],
                "none" if p["leader"] is None else p["leader"],
                _joined(p["replicas"]),
                _joined(p["isr"]),
            )
            for p in bad
        ],
    )


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
