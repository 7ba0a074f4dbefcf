"""Client quotas at work: which limit a request falls under, what has been used of it, and how long its sender waits.

As Kafka (KIP-219): a reply leaves at once and says how long the client is throttled; for that time nothing more is read
from its connection, whether it listens or not. Which quota holds, the first that there is:

    user and client id · user and default client · user · default user and client id · default user and default client
    · default user · client id · default client

Whoever falls under a quota of a user shares it with all connections of that user; else with all of its client id.
There is no authentication yet, so everybody is the user ANONYMOUS, as with Kafka's PLAINTEXT.
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Generator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.config_key import INT_MAX
from penstock.base.token_bucket import TokenBucket
from penstock.cluster.image import ClusterImage, QuotasImage
from penstock.cluster.quota_entity import DEFAULT, QuotaEntity
from penstock.cluster.quota_plan import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

T = TypeVar("T")

ANONYMOUS = "ANONYMOUS"
# Buckets that are remembered, about 2 MB. Client ids are what clients say they are: whoever makes up more of them than
# this gets past a quota of each, here as in Kafka, and is for the quota of a user to stop.
CLIENTS_MAX = 10_000


class Limit(NamedTuple):
    amount_per_s: float
    shared_by: tuple[str, str | None, str | None]  # The kind of quota, and the user and client id it is counted for.


class ClientQuotas:
    """Follows the image. `active` is None while no quota is set, and all that a request pays is to look at it."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._applied: Mapping[QuotaEntity, QuotasImage] | None = None
        self.active: ActiveQuotas | None = None

    def apply(self, image: ClusterImage) -> None:
        if image.client_quotas is self._applied:
            return
        self._applied = image.client_quotas
        clients = {entity: quotas for entity, quotas in image.client_quotas.items() if entity.ip is None}
        if not clients:
            self.active = None
        elif self.active is None:
            self.active = ActiveQuotas(clients, self._config, self._clock)
        else:
            self.active.replace(clients)


class ActiveQuotas:
    def __init__(self, quotas: Mapping[QuotaEntity, QuotasImage], config: BrokerConfig, clock: Clock) -> None:
        self._burst_s = config.quota_burst_s
        self._request_wait_s_max = config.quota_window_size_seconds
        self._now = clock.monotonic
        # Who used its own last is last.
        self._buckets: OrderedDict[tuple[str, str | None, str | None], TokenBucket] = OrderedDict()
        self.replace(quotas)

    def replace(self, quotas: Mapping[QuotaEntity, QuotasImage]) -> None:
        """Other limits; what has been used stays used."""
        self._quotas = quotas
        self._limits: dict[tuple[str, str | None], Limit | None] = {}  # What `_limit` found.

    # Requests

    def on_produce(self, client_id: str | None, count: int) -> int:
        """Count the bytes of a Produce request; gives for how many milliseconds its sender is throttled."""
        limit = self._limit(PRODUCER_BYTE_RATE, client_id)
        return 0 if limit is None else _milliseconds(self._use(limit, count))

    def fetch_bytes_max(self, client_id: str | None) -> int:
        """What a Fetch may return without being throttled for sure."""
        limit = self._limit(CONSUMER_BYTE_RATE, client_id)
        if limit is None:
            return INT_MAX
        return int(min(limit.amount_per_s * self._burst_s, INT_MAX))

    def on_fetch(self, client_id: str | None, count: int) -> tuple[int, bool]:
        """Count the bytes of a Fetch reply; gives the milliseconds of throttling, and whether to send nothing instead.

        What is not sent is not counted. But who has drained its bucket gets its reply, however large: a batch that is
        larger than the bucket would never arrive otherwise.
        """
        limit = self._limit(CONSUMER_BYTE_RATE, client_id)
        if limit is None:
            return 0, False
        bucket = self._bucket(limit)
        had_some = bucket.level(self._now(), limit=limit.amount_per_s) > 0
        throttle_ms = _milliseconds(self._use(limit, count))
        is_withheld = throttle_ms > 0 and count > 0 and had_some
        if is_withheld:
            bucket.give_back(count)
        return throttle_ms, is_withheld

    def request_throttle_ms(self, client_id: str | None) -> int:
        """For how long a client is throttled that has used more of the broker's time than it may, up to a limit."""
        limit = self._limit(REQUEST_PERCENTAGE, client_id)
        if limit is None:
            return 0
        wait_s = self._bucket(limit).wait_s(self._now(), limit=limit.amount_per_s, burst_s=self._burst_s)
        return _milliseconds(min(wait_s, self._request_wait_s_max))

    def on_request_time(self, client_id: str | None, seconds: float) -> None:
        """Count time for which a client had the event loop: all of it is 100 per cent."""
        limit = self._limit(REQUEST_PERCENTAGE, client_id)
        if limit is not None:
            self._use(limit, seconds * 100)

    def timed(self, client_id: str | None, work: Awaitable[T]) -> "Timed[T]":
        """`work`, with each of its steps counted as request time."""
        return Timed(self, client_id, work)

    def now(self) -> float:
        return self._now()

    # Limits and buckets

    def _use(self, limit: Limit, amount: float) -> float:
        """Count `amount`; gives for how long its user has to wait."""
        return self._bucket(limit).take(amount, self._now(), limit=limit.amount_per_s, burst_s=self._burst_s)

    def _bucket(self, limit: Limit) -> TokenBucket:
        bucket = self._buckets.get(limit.shared_by)
        if bucket is None:
            if len(self._buckets) >= CLIENTS_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[limit.shared_by] = TokenBucket()
        else:
            self._buckets.move_to_end(limit.shared_by)
        return bucket

    def _limit(self, kind: str, client_id: str | None) -> Limit | None:
        key = (kind, client_id)
        try:
            return self._limits[key]
        except KeyError:
            if len(self._limits) >= CLIENTS_MAX:
                self._limits.clear()
            limit = self._limits[key] = self._find_limit(kind, client_id or DEFAULT)
            return limit

    def _find_limit(self, kind: str, client_id: str) -> Limit | None:
        """By the order above. Who gives no client id falls under the default, or it would be a way around it."""
        both = (kind, ANONYMOUS, client_id)
        for entity, shared_by in (
            (QuotaEntity(ANONYMOUS, client_id), both),
            (QuotaEntity(ANONYMOUS, DEFAULT), both),
            (QuotaEntity(ANONYMOUS), (kind, ANONYMOUS, None)),
            (QuotaEntity(DEFAULT, client_id), both),
            (QuotaEntity(DEFAULT, DEFAULT), both),
            (QuotaEntity(DEFAULT), (kind, ANONYMOUS, None)),
            (QuotaEntity(client_id=client_id), (kind, None, client_id)),
            (QuotaEntity(client_id=DEFAULT), (kind, None, client_id)),
        ):
            quotas = self._quotas.get(entity)
            if quotas is not None and kind in quotas.limits:
                return Limit(quotas.limits[kind], shared_by)
        return None


class Timed(Generic[T]):
    """An awaitable whose steps on the event loop are counted; what it waits for in between is not."""

    def __init__(self, quotas: ActiveQuotas, client_id: str | None, work: Awaitable[T]) -> None:
        self._quotas = quotas
        self._client_id = client_id
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Any = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            began_s = self._quotas.now()
            try:
                awaited = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._quotas.on_request_time(self._client_id, self._quotas.now() - began_s)
            thrown = None
            try:
                yield awaited
            except BaseException as error:
                thrown = error  # A cancellation, mostly: for the work to handle.


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(seconds * 1000), INT_MAX)
