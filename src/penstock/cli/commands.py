"""The commands of `penstock`, put together with typer."""

from typing import Annotated

import typer

from penstock.base.build import full_version
from penstock.cli import brokers, cluster, groups, log, pipeline, serve, topics
from penstock.cli.consume import consume
from penstock.cli.produce import produce

commands = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    rich_markup_mode=None,  # See main.py.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {full_version()}")
        raise typer.Exit


@commands.callback()
def penstock(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A message broker that speaks Kafka's protocol, and the tools to use it.

    \b
    A first message:
      penstock serve                                  (in one terminal)
      penstock topics create hello                    (in another)
      echo 'Hello, world' | penstock produce hello
      penstock consume hello

    Every command has examples in its --help. Completion for your shell: penstock --install-completion
    """


@commands.command("serve")
def serve_command(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address to listen on.", show_default=serve.DEFAULT_LISTEN),
    ] = None,
    advertised: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address by which clients reach it, for --listen 0.0.0.0:9092.",
            show_default="where it listens",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory for the data; made if missing.", show_default=serve.DEFAULT_DATA),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Kafka-style .properties file; options override its keys.")
    ] = None,
    node_id: Annotated[int | None, typer.Option(metavar="N", min=0, help="This broker's id (node.id).")] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,.../PATH",
            help="ZooKeeper of the cluster to join.",
            show_default="none: this broker is the whole cluster",
        ),
    ] = None,
) -> int:
    """Run a broker until Ctrl-C.

    \b
    Examples:
      penstock serve
      penstock serve --listen localhost:9192 --data /var/lib/penstock
      penstock serve --listen 0.0.0.0:9092 --advertised queue.example.com:9092
      penstock serve --config server.properties --node-id 1
      penstock serve --node-id 2 --listen localhost:9192 --data ./data-2 --zookeeper localhost:2181/penstock
    """
    return serve.serve(
        listen=listen, advertised=advertised, data=data, config=config, node_id=node_id, zookeeper=zookeeper
    )


commands.command()(produce)
commands.command()(consume)
commands.add_typer(topics.commands, name="topics")
commands.add_typer(groups.commands, name="groups")
commands.add_typer(cluster.commands, name="cluster")
commands.add_typer(brokers.commands, name="brokers")
commands.add_typer(log.commands, name="log")
commands.add_typer(pipeline.commands, name="pipeline")
