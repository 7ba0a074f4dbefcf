"""How many connections may come in a second: from one address, and in all (KIP-612).

Whoever is over the rate of its address is held without being read, then closed: a client in a loop gets slower instead
of faster. Over the rate of all, connections are served one after the other as the rate allows. They are accepted all
the same (an event loop cannot leave them in the kernel's queue), but nothing is read from them before their turn.
As in Kafka there is no limit unless somebody sets one: one address may stand for a thousand clients.
"""

from collections import OrderedDict
from typing import NamedTuple

from penstock.base.config import BrokerConfig
from penstock.base.config_key import INT_MAX
from penstock.base.rate import Rate, Windows
from penstock.cluster.image import ClusterImage

IPS_MAX = 10_000  # About 5 MB. An attacker with more addresses is not stopped by counting them.


class Admission(NamedTuple):
    """What becomes of a new connection: it waits for so long, and is then served or closed."""

    hold_s: float = 0.0
    is_refused: bool = False


SERVED_AT_ONCE = Admission()


class ConnectionRates:
    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._windows = Windows(config.quota_window_num, config.quota_window_size_seconds)
        self._burst_s = float((self._windows.number - 1) * self._windows.seconds)
        self._due_s = 0.0  # When all connections up to now have had their share of the rate.
        self._by_ip: OrderedDict[str, Rate] = OrderedDict()  # Who came last is last.
        self._limit = config.max_connection_creation_rate
        self._ip_limits: dict[str, float] = {}
        self._ip_limit: float | None = None  # Of an address that has none of its own.

    def apply(self, image: ClusterImage) -> None:
        """Follow the settings of the cluster."""
        self._limit = image.broker_config(self._config).max_connection_creation_rate

    def on_connection(self, ip: str, now_s: float) -> Admission:
        limit = self._ip_limits.get(ip, self._ip_limit)
        if limit is not None:
            rate = self._rate_of(ip)
            rate.record(1, now_s)
            over_s = rate.throttle_s(limit, now_s)
            if over_s > 0:
                rate.record(-1, now_s)  # It will not be served, so it does not count against the next one.
                return Admission(min(over_s, float(self._windows.seconds)), is_refused=True)
        if self._limit == INT_MAX:
            return SERVED_AT_ONCE
        # Not by windows, which forget: those that wait would be overtaken by those who come later.
        self._due_s = max(self._due_s, now_s) + 1 / self._limit
        return Admission(max(0.0, self._due_s - self._burst_s - now_s))

    def _rate_of(self, ip: str) -> Rate:
        rate = self._by_ip.get(ip)
        if rate is None:
            if len(self._by_ip) >= IPS_MAX:
                self._by_ip.popitem(last=False)
            rate = self._by_ip[ip] = Rate(self._windows)
        else:
            self._by_ip.move_to_end(ip)
        return rate
