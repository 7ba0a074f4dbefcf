"""Clients for the commands that talk to a broker, and Kafka's error codes in words."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Failure, program

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import TopicMetadata

DEFAULT_BOOTSTRAP_SERVER = "localhost:9092"
TIMEOUT_S = 10.0  # One request; a person waits for it.
DELIVERY_TIMEOUT_S = 30.0  # One message with its retries: long enough for a leader election.
_CONNECT_TIMEOUT_S = 5.0
_LOCAL_HOSTS = ("localhost:", "127.0.0.1:", "[::1]:")
_NEW_TOPIC_S = 3.0


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that start so, for the shell; none when no broker answers at once."""
    try:
        bootstrap_server = context.params.get("bootstrap_server") or DEFAULT_BOOTSTRAP_SERVER
        topics = admin_client(bootstrap_server).list_topics(timeout=1.0).topics
    except Exception:  # A completion that fails must not print into the line being typed.
        return []
    return sorted(name for name in topics if name.startswith(incomplete))


def _complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of groups that start so, for the shell; none when no broker answers at once."""
    try:
        bootstrap_server = context.params.get("bootstrap_server") or DEFAULT_BOOTSTRAP_SERVER
        admin = admin_client(bootstrap_server)  # In a variable: a client that nobody holds drops its requests.
        groups = admin.list_consumer_groups(request_timeout=1.0).result(1.0).valid
    except Exception:  # As above.
        return []
    return sorted(group.group_id for group in groups if group.group_id.startswith(incomplete))


BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar="PENSTOCK_BOOTSTRAP_SERVER",
        help="Broker to connect to; several with commas.",
        is_eager=True,  # Known by the time the shell asks to complete a topic's name.
    ),
]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics)]
TopicNames = Annotated[
    list[str], typer.Argument(metavar="TOPIC", help="Names of topics.", autocompletion=complete_topics)
]
SomeTopicNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC", help="Names of topics; all when there is none.", autocompletion=complete_topics),
]
GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.", autocompletion=_complete_groups)]
GroupIds = Annotated[list[str], typer.Argument(metavar="GROUP", help="Ids of groups.", autocompletion=_complete_groups)]
SomeGroupIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="GROUP", help="Ids of groups; all when there is none.", autocompletion=_complete_groups),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and errors as JSON too.")]


def admin_client(bootstrap_server: str) -> "AdminClient":
    """A client for topics and their configuration; Failure when nobody listens there."""
    check_reachable(bootstrap_server)
    from confluent_kafka.admin import AdminClient

    return AdminClient(_settings(bootstrap_server))


def kafka_admin() -> Any:
    """The module `confluent_kafka.admin`, whose names strict type checking takes for private."""
    from confluent_kafka import admin

    return admin


def producer(bootstrap_server: str, settings: dict[str, Any]) -> "Producer":
    """A client that sends messages; Failure when nobody listens there."""
    check_reachable(bootstrap_server)
    from confluent_kafka import Producer

    return Producer(_settings(bootstrap_server) | settings)


def consumer(bootstrap_server: str, settings: dict[str, Any]) -> "Consumer":
    """A client that reads partitions it is assigned by hand; Failure when nobody listens there."""
    check_reachable(bootstrap_server)
    from confluent_kafka import Consumer

    # librdkafka wants a group's name even from those that never join it.
    return Consumer(_settings(bootstrap_server) | {"group.id": "penstock-cli", "enable.auto.commit": False} | settings)


def _settings(bootstrap_server: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_server,
        "client.id": "penstock-cli",
        "socket.timeout.ms": int(TIMEOUT_S * 1000),
        "socket.connection.setup.timeout.ms": int(TIMEOUT_S * 1000),
        # librdkafka logs to stderr on its own; what matters comes back as an error, which we put in our own words.
        "log_level": 0,
        "error_cb": lambda error: None,
    }


def check_reachable(bootstrap_server: str) -> None:
    """Failure at once, with the operating system's reason: librdkafka would keep trying until the request times out."""
    reasons = []
    for address in bootstrap_server.split(","):
        host, port = host_and_port(address.strip())
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(_reason(error))
        else:
            return
    raise unreachable(bootstrap_server, "; ".join(dict.fromkeys(reasons)))


def host_and_port(address: str) -> tuple[str, int]:
    address = address.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, "9092"
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise Failure(
            f"'{address}' is not the address of a broker.",
            hint=f"Give HOST:PORT, for example: --bootstrap-server {DEFAULT_BOOTSTRAP_SERVER}",
            code="USAGE",
        )
    return host.strip("[]"), int(port)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_TIMEOUT_S:.0f} seconds"
    return (error.strerror or str(error)).lower()


def unreachable(bootstrap_server: str, reason: str) -> Failure:
    """The Failure for a broker that does not take connections."""
    listen = "" if bootstrap_server == DEFAULT_BOOTSTRAP_SERVER else f" --listen {bootstrap_server}"
    if bootstrap_server.startswith(_LOCAL_HOSTS) and "," not in bootstrap_server:
        hint = f"Is it running? Start one with: {program()} serve{listen}"
    else:
        hint = (
            "See that host and port are right, and that the broker runs; give others with --bootstrap-server HOST:PORT."
        )
    return Failure(f"Cannot reach a broker at {bootstrap_server}: {reason}.", hint=hint, code="BROKER_UNREACHABLE")


def command(words: str, bootstrap_server: str) -> str:
    """A command line to paste, with the broker's address unless it is the default."""
    at = "" if bootstrap_server == DEFAULT_BOOTSTRAP_SERVER else f" -b {bootstrap_server}"
    return f"{program()} {words}{at}"


@contextmanager
def explained(doing: str, bootstrap_server: str, topic: str = "TOPIC", group: str = "GROUP") -> Iterator[None]:
    """Turns Kafka's exceptions inside it into a Failure: "Cannot <doing>: why", with what to do."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as exception:
        raise failure_of(exception.args[0], doing, bootstrap_server, topic, group) from exception


@contextmanager
def prompt_interrupt() -> Iterator[None]:
    """Around a call that waits inside librdkafka: Ctrl-C ends the process at once, not when the call returns."""
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def failure_of(
    error: "KafkaError", doing: str, bootstrap_server: str, topic: str = "TOPIC", group: str = "GROUP"
) -> Failure:
    """The Failure for one of Kafka's error codes."""
    name = error.name()
    if name in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE"):
        try:
            check_reachable(bootstrap_server)
        except Failure as failure:
            return failure
        return Failure(
            f"Cannot {doing}: {bootstrap_server} takes connections, but did not answer in {TIMEOUT_S:.0f} seconds.",
            hint="See that it is a Kafka broker, and what the broker's log says.",
            code=name,
        )
    reason = error.str().removeprefix("Broker: ").rstrip(".")
    return Failure(f"Cannot {doing}: {reason}.", hint=hint_for(name, bootstrap_server, topic, group), code=name)


def hint_for(name: str, bootstrap_server: str, topic: str, group: str = "GROUP") -> str:
    """What to do about the error code called `name`; nothing when its text says it all."""
    if name == "TOPIC_ALREADY_EXISTS":
        return f"Accept it with --if-not-exists, or look at it: {command(f'topics describe {topic}', bootstrap_server)}"
    if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
        return (
            f"See which there are: {command('topics list', bootstrap_server)} - "
            f"or create it: {command(f'topics create {topic}', bootstrap_server)}"
        )
    if name == "_UNKNOWN_PARTITION":
        return f"See its partitions with: {command(f'topics describe {topic}', bootstrap_server)}"
    if name == "INVALID_REPLICATION_FACTOR":
        return "There cannot be more replicas than brokers; without --replication-factor the broker chooses."
    if name in ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"):
        alter = f"topics alter {topic} --config max.message.bytes=N"
        return f"Allow larger messages with: {command(alter, bootstrap_server)}"
    if name in ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"):
        return f"Too few replicas are in sync; see the isr in: {command(f'topics describe {topic}', bootstrap_server)}"
    if name == "GROUP_ID_NOT_FOUND":
        return f"See which there are: {command('groups list', bootstrap_server)}"
    if name in ("NON_EMPTY_GROUP", "UNKNOWN_MEMBER_ID"):
        return f"Stop its consumers first; see who they are: {command(f'groups describe {group}', bootstrap_server)}"
    if name in ("UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE"):
        return "This broker does not know the request: it may be older than this program."
    if name == "_MSG_TIMED_OUT":
        return (
            f"Nobody confirmed it within {DELIVERY_TIMEOUT_S:.0f} seconds: is the broker at {bootstrap_server} running?"
        )
    return ""


def topic_metadata(client: "Producer | Consumer", topic: str, doing: str, bootstrap_server: str) -> "TopicMetadata":
    """What the broker knows of the topic (a producer's asking may create it); Failure when there is none."""
    give_up_at = time.monotonic() + _NEW_TOPIC_S
    while True:
        with explained(doing, bootstrap_server, topic), prompt_interrupt():
            metadata: TopicMetadata = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if metadata.error is None:
            return metadata
        # A topic that was just made, perhaps by our asking (auto.create.topics.enable), gets its leader in a moment.
        if metadata.error.name() != "LEADER_NOT_AVAILABLE" or time.monotonic() > give_up_at:
            raise failure_of(metadata.error, doing, bootstrap_server, topic)
        time.sleep(0.1)
