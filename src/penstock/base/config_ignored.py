"""Kafka's broker settings that are not ours, each with the reason.

Ignored ones change nothing that a client could see, so an existing server.properties still starts, with a warning line
each. Refused ones promise something (security, tiers, a cluster) that the broker would then silently not do.
"""

_KRAFT = "there is no KRaft quorum"
_THREADS = "one event loop serves all connections"
_NOT_YET = "not served yet"
_SOCKET = "the operating system tunes its socket buffers"

_IGNORED = {
    "background.threads": _THREADS,
    "controller.listener.names": _KRAFT,
    "early.start.listeners": _KRAFT,
    "initial.broker.registration.timeout.ms": _KRAFT,
    "inter.broker.listener.name": "there is one listener",
    "inter.broker.protocol.version": "Kafka 4 has no such setting either",
    "leader.imbalance.per.broker.percentage": "every partition goes back to its preferred leader",
    "listener.security.protocol.map": "there is one listener",
    "log.cleaner.dedupe.buffer.size": "compaction takes what its map of keys needs",
    "log.cleaner.io.buffer.load.factor": "compaction takes what its map of keys needs",
    "log.cleaner.io.buffer.size": "compaction reads whole batches",
    "log.flush.scheduler.interval.ms": "penstock.durability decides",
    "log.flush.start.offset.checkpoint.interval.ms": "written with the recovery checkpoint",
    "log.message.downconversion.enable": "Kafka 4 has no such setting either",
    "log.message.format.version": "Kafka 4 has no such setting either",
    "log.initial.task.delay.ms": "background tasks start with the broker",
    "num.io.threads": _THREADS,
    "num.network.threads": _THREADS,
    "num.recovery.threads.per.data.dir": _THREADS,
    "num.replica.alter.log.dirs.threads": _THREADS,
    "num.replica.fetchers": _THREADS,
    "process.roles": _KRAFT,
    "queued.max.requests": "queued.max.request.bytes bounds what is queued",
    "request.timeout.ms": "brokers wait for each other as long as the request needs",
    "reserved.broker.max.id": "ids are given by node.id alone",
    "broker.id.generation.enable": "ids are given by node.id alone",
    "socket.listen.backlog.size": _SOCKET,
    "socket.receive.buffer.bytes": _SOCKET,
}

_IGNORED_PREFIXES = {
    "add.partitions.to.txn.": "a producer that is a moment early is waited for as long as it takes by default",
    "broker.heartbeat.": _KRAFT,
    "broker.session.": _KRAFT,
    "controller.": _KRAFT,
    "metadata.log.": _KRAFT,
    "metadata.max.": _KRAFT,
    "group.consumer.": "no setting of consumer groups here",
    "group.coordinator.": _NOT_YET,
    "group.share.": _NOT_YET,
    "group.streams.": _NOT_YET,
    "offsets.": "the group coordinator settles it itself",
    "transaction.": "the transaction coordinator settles it itself",
    "share.coordinator.": _NOT_YET,
    "replica.": "followers set their own pace",
    "fetch.purgatory.": "waiting requests are woken by what they wait for",
    "producer.purgatory.": "waiting requests are woken by what they wait for",
    "delete.records.purgatory.": "waiting requests are woken by what they wait for",
    "metrics.": "metrics are not reported to plugins",
    "metric.": "metrics are not reported to plugins",
    "kafka.metrics.": "metrics are not reported to plugins",
    "telemetry.": "telemetry push is not planned",
    "zookeeper.": "of ZooKeeper only the address and the timeouts can be set",
}

_REFUSED = {
    "alter.config.policy.class.name": "classes are not loaded by name",
    "authorizer.class.name": "ACLs are not enforced yet, and the broker would be open to all",
    "create.topic.policy.class.name": "classes are not loaded by name",
    "max.connections.per.ip.overrides": "only one limit for all addresses is enforced",
    "principal.builder.class": "classes are not loaded by name",
    "security.inter.broker.protocol": "TLS and SASL are not served yet",
    "super.users": "ACLs are not enforced yet, and the broker would be open to all",
}

_REFUSED_PREFIXES = {
    "delegation.token.": "delegation tokens are not served yet",
    "listener.name.": "TLS and SASL are not served yet",
    "controller.quota.": "the rate of changes to topics is not limited",
    "remote.log.": "tiered storage to object stores is not planned",
    "sasl.": "TLS and SASL are not served yet",
    "security.providers": "classes are not loaded by name",
    "ssl.": "TLS and SASL are not served yet",
    "zookeeper.ssl.": "TLS to ZooKeeper is not served yet",
    "zookeeper.set.acl": "ZooKeeper's ACLs are not used yet, and its tree would be open to all",
    "config.providers": "values are plain text and never expanded",
}


def why_ignored(name: str) -> str | None:
    """The reason for which the Kafka setting `name` has no effect here; None when it is not such a setting."""
    return _lookup(name, _IGNORED, _IGNORED_PREFIXES)


def why_refused(name: str) -> str | None:
    """The reason for which the Kafka setting `name` stops the broker from starting; None when it does not."""
    return _lookup(name, _REFUSED, _REFUSED_PREFIXES)


def _lookup(name: str, exact: dict[str, str], prefixes: dict[str, str]) -> str | None:
    if name in exact:
        return exact[name]
    return next((reason for prefix, reason in prefixes.items() if name.startswith(prefix)), None)
