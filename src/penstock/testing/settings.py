"""The settings of a broker for tests: Kafka's keys, with defaults under which nothing is waited for."""

from collections.abc import Mapping

Setting = str | int | float | bool

TEST_DEFAULTS: Mapping[str, Setting] = {
    "group.initial.rebalance.delay.ms": 0,  # The first member of a group gets its partitions at once.
    "group.min.session.timeout.ms": 1,  # Tests may want members to die soon.
    "offsets.topic.num.partitions": 1,  # The first group makes one directory, not fifty.
    "connections.max.idle.ms": 1 << 62,  # Advancing the clock by a day must not cut off the clients.
}


def broker_properties(settings: Mapping[str, Setting], *, data_dir: str, durability: str) -> dict[str, str]:
    """Properties for BrokerConfig.load: ours, the defaults for tests, and `settings` over both."""
    # Not "localhost": a free port of its IPv4 address need not be free, or the same, on its IPv6 one.
    ours = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": data_dir, "penstock.durability": durability}
    return {name: as_text(value) for name, value in {**ours, **TEST_DEFAULTS, **settings}.items()}


def as_text(value: Setting) -> str:
    """A setting the way Kafka writes it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)
