"""`penstock topics watch`: how much is in each topic, and how fast more comes."""

from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.connection import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    SomeTopicNames,
    admin_client,
    explained,
    hint_for,
    kafka_admin,
)
from penstock.cli.live import INTERVAL_S, Count, Frame, Interval, Look, watch_live
from penstock.cli.offsets import Offsets, offsets_at, partitions_by_topic
from penstock.cli.output import Failure

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class TopicSize(NamedTuple):
    starts: Offsets
    ends: Offsets  # Of the same partitions.

    @property
    def figures(self) -> dict[str, int]:
        """Compaction and transaction markers leave gaps between the offsets, which count as records here."""
        ends = sum(self.ends.values())
        return {"partitions": len(self.ends), "records": ends - sum(self.starts.values()), "end_offsets": ends}


def watch(
    names: SomeTopicNames = None,
    interval: Interval = INTERVAL_S,
    count: Count = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Show how many records topics hold and how many come in per second, until Ctrl-C.

    \b
    Examples:
      penstock topics watch
      penstock topics watch orders prices --interval 10
      penstock topics watch orders --json --count 1 | jq '.topics[0].records_per_s'
    """
    admin = admin_client(bootstrap_server)
    wanted = list(dict.fromkeys(names or ()))

    def sample() -> dict[str, TopicSize]:
        with explained("watch the topics", bootstrap_server):
            return _sizes(admin, wanted)

    missing = sorted(set(wanted) - set(sample()))
    if missing:
        raise Failure(
            f"Cannot watch topic '{missing[0]}': there is no such topic.",
            hint=hint_for("UNKNOWN_TOPIC_OR_PART", bootstrap_server, missing[0]),
            code="UNKNOWN_TOPIC_OR_PART",
        )
    watch_live(sample, topics_frame, interval_s=interval, count=count, as_json=json)


def _sizes(admin: "AdminClient", wanted: list[str]) -> dict[str, TopicSize]:
    kafka = kafka_admin()
    topics = partitions_by_topic(admin)
    shown = wanted or sorted(name for name in topics if not name.startswith("__"))
    partitions = {name: topics[name] for name in shown if name in topics}
    every = [partition for of_topic in partitions.values() for partition in of_topic]
    starts = offsets_at(admin, every, kafka.OffsetSpec.earliest())
    ends = offsets_at(admin, every, kafka.OffsetSpec.latest())
    sizes = {}
    for name, of_topic in partitions.items():
        answered = [partition for partition in of_topic if partition in starts and partition in ends]
        sizes[name] = TopicSize({p: starts[p] for p in answered}, {p: ends[p] for p in answered})
    return sizes


def topics_frame(look: Look[dict[str, TopicSize]]) -> Frame:
    """The table and the JSON of a look at topics."""
    rates = {name: _per_second(look, name) for name in look.now}
    return Frame(
        ["TOPIC", "PARTITIONS", "RECORDS", "END OFFSETS", "IN/S"],
        [(name, *size.figures.values(), rates[name]) for name, size in look.now.items()],
        {"topics": [{"name": name, **size.figures, "records_per_s": rates[name]} for name, size in look.now.items()]},
    )


def _per_second(look: Look[dict[str, TopicSize]], name: str) -> float | None:
    """None for a topic that is new, or that was deleted and made again meanwhile."""
    if look.elapsed_s is None or name not in look.before:
        return None
    before, now = look.before[name].ends, look.now[name].ends
    # Only partitions seen both times: one that finds its leader again brings no records.
    came = [now[partition] - before[partition] for partition in now if partition in before]
    return round(sum(came) / look.elapsed_s, 1) if min(came, default=0) >= 0 else None
