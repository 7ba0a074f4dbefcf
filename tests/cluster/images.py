"""Images for tests, made the only way there is: by applying changes of a store."""

from collections.abc import Iterable, Sequence
from itertools import count

from penstock.base.types import NodeId
from penstock.cluster import records
from penstock.cluster.image import EMPTY_IMAGE, ClusterImage, apply
from penstock.cluster.store.base import Change, Entry, Put, Write

_versions = count(100)


def changes_of(writes: Iterable[Write]) -> list[Change]:
    """What a store would tell of `writes`, each with a version of its own."""
    return [
        Change(write.key, Entry(write.key, write.value, next(_versions), 1) if isinstance(write, Put) else None)
        for write in writes
    ]


def after(image: ClusterImage, writes: Iterable[Write]) -> ClusterImage:
    return apply(image, changes_of(writes))


def broker(node_id: int, rack: str | None = None, *, is_stopping: bool = False) -> Put:
    record = records.BrokerRecord("localhost", 9092, rack, is_stopping=is_stopping)
    return Put(records.broker_key(NodeId(node_id)), records.encode_broker(record))


def cluster(brokers: Sequence[int] = (1,)) -> ClusterImage:
    """A cluster without topics; broker 1 is the controller, and every broker has epoch 1."""
    writes: list[Write] = [broker(node_id) for node_id in brokers]
    writes.append(Put(records.CLUSTER_ID, records.encode({"id": "test"})))
    writes.append(Put(records.CONTROLLER, records.encode({"node": 1})))
    writes.append(Put(records.CONTROLLER_EPOCH, records.encode({"epoch": 1})))
    return after(EMPTY_IMAGE, writes)
