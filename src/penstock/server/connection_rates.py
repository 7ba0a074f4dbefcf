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
from penstock.base.token_bucket import TokenBucket
from penstock.cluster.image import ClusterImage
from penstock.cluster.quota_entity import DEFAULT
from penstock.cluster.quota_plan import CONNECTION_CREATION_RATE

IPS_MAX = 10_000  # About 2 MB. An attacker with more addresses is not stopped by counting them.


class Admission(NamedTuple):
    """What becomes of a new connection: it waits for so long, and is then served or closed."""

    hold_s: float = 0.0
    is_refused: bool = False


SERVED_AT_ONCE = Admission()


class ConnectionRates:
    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._all = TokenBucket()
        self._by_ip: OrderedDict[str, TokenBucket] = OrderedDict()  # Who came last is last.
        self._limit = config.max_connection_creation_rate
        self._ip_limits: dict[str, float] = {}
        self._ip_limit: float | None = None  # Of an address that has none of its own.

    def apply(self, image: ClusterImage) -> None:
        """Follow the settings of the cluster."""
        self._limit = image.broker_config(self._config).max_connection_creation_rate
        limits = {
            entity.ip: quotas.limits[CONNECTION_CREATION_RATE]
            for entity, quotas in image.client_quotas.items()
            if entity.ip is not None and CONNECTION_CREATION_RATE in quotas.limits
        }
        self._ip_limit = limits.pop(DEFAULT, None)
        self._ip_limits = limits

    def on_connection(self, ip: str, now_s: float) -> Admission:
        burst_s = self._config.quota_burst_s
        ip = ip.removeprefix("::ffff:")  # How IPv4 addresses look on a socket of both kinds.
        limit = self._ip_limits.get(ip, self._ip_limit)
        if limit is not None:
            bucket = self._bucket_of(ip)
            wait_s = bucket.take(1, now_s, limit=limit, burst_s=burst_s)
            if wait_s > 0:
                bucket.give_back(1)  # It will not be served, so it does not count against the next one.
                return Admission(min(wait_s, float(self._config.quota_window_size_seconds)), is_refused=True)
        if self._limit == INT_MAX:
            return SERVED_AT_ONCE
        return Admission(self._all.take(1, now_s, limit=self._limit, burst_s=burst_s))

    def _bucket_of(self, ip: str) -> TokenBucket:
        bucket = self._by_ip.get(ip)
        if bucket is None:
            if len(self._by_ip) >= IPS_MAX:
                self._by_ip.popitem(last=False)
            bucket = self._by_ip[ip] = TokenBucket()
        else:
            self._by_ip.move_to_end(ip)
        return bucket
