"""The clients, how each one is started, and what it cannot do."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .corpus import CODECS, CorpusLimits
from .parts import golang, java, node, system, wheels
from .parts.cache import CLIENTS


@dataclass(frozen=True)
class ClientKind:
    name: str
    command: Callable[[], Sequence[str]]  # Fetches and builds what it needs, or raises PartMissing.
    env: Callable[[], Mapping[str, str]] = dict
    codecs: tuple[str, ...] = CODECS
    limits: CorpusLimits = field(default_factory=CorpusLimits)
    sets_timestamps: bool = True


def _python(script: str) -> Sequence[str]:
    return (sys.executable, str(CLIENTS / "python" / script))


def _kcat() -> Sequence[str]:
    system.from_path_or_apt("kcat", "kcat")
    return _python("kcat_client.py")


CONFLUENT = ClientKind("confluent-kafka", lambda: _python("confluent_client.py"))

CLIENT_KINDS = {
    kind.name: kind
    for kind in (
        CONFLUENT,
        ClientKind("kcat", _kcat, limits=CorpusLimits(headers_per_record=False), sets_timestamps=False),
        ClientKind(
            "kafka-python",
            lambda: _python("kafka_python_client.py"),
            env=lambda: {"PYTHONPATH": str(wheels.kafka_python_codecs())},
            limits=CorpusLimits(null_header_values=False, null_key_with_null_value=False),
        ),
        ClientKind(
            "aiokafka",
            lambda: _python("aiokafka_client.py"),
            limits=CorpusLimits(null_key_with_null_value=False),
        ),
        ClientKind("kafkajs", node.kafkajs_program, limits=CorpusLimits(null_header_values=False)),
        ClientKind("franz-go", golang.franz_go_program),
        ClientKind("java", lambda: java.program("ClientJobs")),
    )
}
