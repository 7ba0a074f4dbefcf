"""`penstock brokers`: which there are, and moving partitions when one comes or goes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from penstock.cli.cluster_view import ClusterView, LogSizes, look, look_to_plan
from penstock.cli.confirm import confirm
from penstock.cli.connection import DEFAULT_BOOTSTRAP_SERVER, AsJson, BootstrapServer, command
from penstock.cli.move_plan import Layout, Partition, TooFewBrokers, plan_drain, plan_rebalance
from penstock.cli.moves import carry_out, elect_preferred, size
from penstock.cli.output import Failure, note, plural, print_json, print_table
from penstock.cli.throttle import parse_rate, remove_throttle, set_throttle
from penstock.cli.wire_client import WireClient

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List brokers, give a new one its share, move everything off one that goes.",
)


def _complete_brokers(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of brokers that start so, for the shell; none when no broker answers at once."""
    try:
        client = WireClient(context.params.get("bootstrap_server") or DEFAULT_BOOTSTRAP_SERVER, patience_s=0)
        nodes = look(client).brokers
        client.close()
    except Exception:  # A completion that fails must not print into the line being typed.
        return []
    return [str(node) for node in sorted(nodes) if str(node).startswith(incomplete)]


BrokerId = Annotated[
    int, typer.Argument(metavar="ID", min=0, help="Id of the broker.", autocompletion=_complete_brokers)
]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Bytes per second that each broker sends and copies at most, as 10MB/s.",
        show_default="none",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be moved, and move nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@commands.command("list")
def list_brokers(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER, json: AsJson = False) -> None:
    """List the brokers with what they lead and hold.

    \b
    Examples:
      penstock brokers list
      penstock brokers list --json | jq '.[] | select(.replicas == 0) | .id'
    """
    with _connected(bootstrap_server) as client:
        view = look(client)
    sizes = LogSizes()
    in_bytes = {node: sum(sizes.of([broker]).values()) for node, broker in view.brokers.items()}
    sizes.close()
    rows = [_row(view, node, in_bytes.get(node)) for node in _nodes(view)]
    if json:
        print_json(rows)
        return
    print_table(
        ["BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "IN SYNC", "SIZE"],
        [
            (
                row["id"],
                "away" if row["host"] is None else f"{row['host']}:{row['port']}",
                row["rack"] or "-",
                row["leads"],
                row["replicas"],
                row["in_sync"],
                "-" if row["bytes"] is None else size(row["bytes"]),
            )
            for row in rows
        ],
    )


@commands.command()
def drain(
    node_id: BrokerId,
    throttle: Throttle = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Move every partition off a broker, so that it can be stopped for good.

    Clients go on meanwhile. Each replica goes to a broker that has none of its partition: one of a rack of its own if
    there is one, and then one with the least to do. Ctrl-C stops this command and not the moves; started again, it goes
    on where they are.

    \b
    Examples:
      penstock brokers drain 3
      penstock brokers drain 3 --throttle 10MB/s --yes
      penstock brokers drain 3 --dry-run --json
    """
    rate = None if throttle is None else parse_rate(throttle)
    moved: dict[Partition, tuple[int, ...]] = {}
    with _connected(bootstrap_server) as client:
        view = look_to_plan(client)
        if node_id not in _nodes(view):
            raise Failure(
                f"There is no broker {node_id}.",
                hint=f"See which there are: {command('brokers list', bootstrap_server)}",
                code="BROKER_NOT_FOUND",
            )
        # Again until nothing is left: topics may be made meanwhile.
        while view.hosted_by(node_id):
            plan = _drain_plan(view, node_id, bootstrap_server)
            if dry_run:
                _show_plan(view, plan, as_json=json)
                return
            if not moved and not yes:
                confirm(f"Move {_amount(view, plan)} off broker {node_id}?", "Moving partitions loads the cluster")
            _move(client, view, plan, rate, f"Draining broker {node_id}", f"drain {node_id}", bootstrap_server, json)
            moved.update(plan)
            view = look_to_plan(client)
        if moved:
            elect_preferred(client, moved)  # Whoever led meanwhile was the first to be in sync.
        _end_throttle(client, view)
    if json:
        print_json({"broker": node_id, "partitions_moved": len(moved), "partitions_left": 0})
    else:
        print(f"Broker {node_id} hosts nothing; it can be stopped.")


@commands.command()
def rebalance(
    throttle: Throttle = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Give each broker as many replicas and leaders as the next, a new one its share included.

    As few replicas move as can be, and never into fewer racks. Nothing moves by itself: new topics alone are placed on
    a new broker without this.

    \b
    Examples:
      penstock brokers rebalance --dry-run
      penstock brokers rebalance --throttle 10MB/s
    """
    rate = None if throttle is None else parse_rate(throttle)
    with _connected(bootstrap_server) as client:
        view = look_to_plan(client)
        plan = {
            partition: target
            for partition, target in plan_rebalance(view.layout, view.racks).items()
            if view.partitions[partition].leader is not None  # Else there is nobody to copy from.
        }
        plan |= {  # On their way from an earlier start.
            partition: item.target
            for partition, item in view.partitions.items()
            if item.is_moving and partition not in plan
        }
        if dry_run:
            _show_plan(view, plan, as_json=json)
            return
        if plan:
            if not yes:
                confirm(f"Move {_amount(view, plan)}?", "Moving partitions loads the cluster")
            _move(client, view, plan, rate, "Rebalancing", "rebalance", bootstrap_server, json)
            elect_preferred(client, plan)
        _end_throttle(client, look_to_plan(client))
    if json:
        print_json({"partitions_moved": len(plan)})
    elif plan:
        print(f"Rebalanced: {plural(len(plan), 'partition')} moved or led by another broker.")
    else:
        print("Nothing to do: every broker has its share.")


@commands.command()
def elect(bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER, json: AsJson = False) -> None:
    """Have each partition led by its preferred broker now; without it that happens within five minutes.

    \b
    Examples:
      penstock brokers elect
    """
    with _connected(bootstrap_server) as client:
        changed = elect_preferred(client, None)
    if json:
        print_json({"leaders_changed": changed})
    else:
        print(f"{plural(changed, 'partition')} led by another broker than before.")


# Shared by the commands that move


@contextmanager
def _connected(bootstrap_server: str) -> Iterator[WireClient]:
    client = WireClient(bootstrap_server)
    try:
        yield client
    finally:
        client.close()


def _drain_plan(view: ClusterView, node_id: int, bootstrap_server: str) -> dict[Partition, tuple[int, ...]]:
    """What is still to go, with what is on its way from an earlier start."""
    status = command("cluster status", bootstrap_server)
    offline = [partition for partition in view.hosted_by(node_id) if view.partitions[partition].leader is None]
    if offline:
        raise Failure(
            f"{plural(len(offline), 'partition')} on broker {node_id} cannot be copied, as nobody leads them: "
            f"{', '.join(map(str, offline[:3]))}{' ...' if len(offline) > 3 else ''}.",
            hint=f"Bring back the brokers that have them; see: {status}",
            code="OFFLINE",
        )
    try:
        plan = plan_drain(view.layout, view.racks, node_id)
    except TooFewBrokers as error:
        raise Failure(
            f"Broker {node_id} cannot be drained: {error}.",
            hint="Add a broker first, or give the topic fewer replicas: "
            + command("topics alter TOPIC --replication-factor N", bootstrap_server),
            code="TOO_FEW_BROKERS",
        ) from error
    on_their_way = [partition for partition in view.hosted_by(node_id) if partition not in plan]
    return plan | {partition: view.partitions[partition].target for partition in on_their_way}


def _move(
    client: WireClient,
    view: ClusterView,
    plan: Layout,
    rate: int | None,
    doing: str,
    words: str,
    bootstrap_server: str,
    quiet: bool,
) -> None:
    if rate is not None:
        set_throttle(client, view, plan, rate)
    carry_out(client, view, plan, doing=doing, again=command(f"brokers {words}", bootstrap_server), quiet=quiet)


def _end_throttle(client: WireClient, view: ClusterView) -> None:
    if any(partition.is_moving for partition in view.partitions.values()):
        note("Somebody else moves partitions: a throttle is left as it is.")
    else:
        remove_throttle(client, view)


def _show_plan(view: ClusterView, plan: Layout, *, as_json: bool) -> None:
    rows = [(partition, view.partitions[partition].replicas, target) for partition, target in sorted(plan.items())]
    if as_json:
        print_json(
            [{"topic": p.topic, "partition": p.number, "from": list(before), "to": list(to)} for p, before, to in rows]
        )
    elif rows:
        print_table(
            ["TOPIC", "PARTITION", "FROM", "TO"],
            [(p.topic, p.number, ",".join(map(str, before)), ",".join(map(str, to))) for p, before, to in rows],
        )
        print(f"\n{_amount(view, plan)} would be moved.")
    else:
        print("Nothing to do.")


def _amount(view: ClusterView, plan: Layout) -> str:
    sizes = LogSizes()
    found = sizes.of(view.brokers.values(), plan)
    sizes.close()
    to_copy = 0
    for partition, target in plan.items():
        before = view.partitions[partition]
        if before.leader is not None:
            to_copy += found.get((before.leader, partition), 0) * len(set(target) - set(before.isr))
    return f"{plural(len(plan), 'partition')}, {size(to_copy)} to copy"


def _nodes(view: ClusterView) -> list[int]:
    """Also those that should be there: a broker that is away has its replicas on it all the same."""
    return sorted({*view.brokers, *(node for item in view.partitions.values() for node in item.replicas)})


def _row(view: ClusterView, node: int, in_bytes: int | None) -> Mapping[str, Any]:
    broker = view.brokers.get(node)
    partitions = view.partitions.values()
    return {
        "id": node,
        "host": None if broker is None else broker.host,
        "port": None if broker is None else broker.port,
        "rack": None if broker is None else broker.rack,
        "leads": sum(item.leader == node for item in partitions),
        "replicas": sum(node in item.replicas for item in partitions),
        "in_sync": sum(node in item.isr for item in partitions),
        "bytes": in_bytes,
    }
