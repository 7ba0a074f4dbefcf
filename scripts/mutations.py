"""Ten known bugs, put into a copy of the source one at a time: the tests named beside each must fail.

    make mutations

A suite that passes with one of them in is no evidence. The table is in docs/reliability.md.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutation(NamedTuple):
    name: str
    path: str  # Below src/penstock.
    sound: str
    wrong: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "a follower cuts by its high watermark",
        "partition/partition.py",
        "offset = self._checkpoint.epochs.truncation(diverging, self.log.log_end)",
        "offset = self.high_watermark",
        ("tests/partition/test_partition.py",),
    ),
    Mutation(
        "an ack before the fsync",
        "partition/partition.py",
        "return self.log.synced_end if self._is_durable else self.log.log_end",
        "return self.log.log_end",
        ("tests/partition/test_partition.py", "tests/server/test_replication.py"),
    ),
    Mutation(
        "the recovery point counts what is in the journal alone",
        "storage/log_manager.py",
        "checkpoints.recovery_points[topic_partition] = partition_log.filed_end",
        "checkpoints.recovery_points[topic_partition] = partition_log.synced_end",
        ("tests/storage/test_journal.py",),
    ),
    Mutation(
        "what was cut off is not void in the journal",
        "storage/journal_replay.py",
        "if piece.kind == VOID:",
        "if False:",
        ("tests/storage/test_journal.py",),
    ),
    Mutation(
        "compaction goes ahead of the recovery point on disk",
        "storage/log_manager.py",
        "await self._checkpoints.store()  # It may be known in memory alone.",
        "pass",
        ("tests/storage/test_journal.py",),
    ),
    Mutation(
        "an epoch without records stays in its checkpoint",
        "partition/partition.py",
        "self._are_epochs_stored = False",
        "pass",
        ("tests/partition/test_partition.py",),
    ),
    Mutation(
        "leader epochs are not compared",
        "partition/partition.py",
        "if current_leader_epoch in (NO_EPOCH, self.leader_epoch):",
        "if True:",
        ("tests/partition/test_partition.py",),
    ),
    Mutation(
        "retries of idempotent producers are stored again",
        "partition/producer_state.py",
        "return self._check_unusual(header, producer)",
        "return None",
        ("tests/partition/test_producer_state.py",),
    ),
    Mutation(
        "only the old in-sync replicas count while a change is under way",
        "partition/replica_state.py",
        "return self.isr if self.pending is None else self.isr | self.pending",
        "return self.isr",
        ("tests/partition/test_replica_state.py",),
    ),
    Mutation(
        "offsets are committed whatever the generation",
        "coordinator/group/offset_commit.py",
        "if command.generation_id != group.generation_id:",
        "if False:",
        ("tests/coordinator/group/test_offsets.py",),
    ),
    Mutation(
        "an index entry is believed",
        "storage/segment.py",
        "if first_last_offset is not None and header.last_offset != first_last_offset:",
        "if False:",
        ("tests/storage/test_segment.py",),
    ),
    Mutation(
        "retention believes a clock that has jumped",
        "storage/retention.py",
        "return abs(now_ms - last[0] - elapsed_ms) > CLOCK_JUMP_MS",
        "return False",
        ("tests/storage/test_retention.py", "tests/storage/test_log_manager.py"),
    ),
    Mutation(
        "the high watermark moves with too few replicas in sync",
        "partition/replica_state.py",
        "if len(self.isr) < isr_min:\n            return False\n        committed",
        "committed",
        ("tests/partition/test_replica_state.py", "tests/server/test_replication.py"),
    ),
    Mutation(
        "a transaction's marker is lost",
        "server/txn_markers.py",
        "codes.get(partition, ErrorCode.not_leader_or_follower) not in _OVER",
        "codes.get(partition, ErrorCode.none) not in _OVER",
        ("tests/server/test_txn_markers.py",),
    ),
    Mutation(
        "a Spark batch that was decided is aborted by the next driver",
        "spark/writer.py",
        "is_commit=name in decided)",
        "is_commit=False)",
        ("tests/spark/test_sink.py",),
    ),
    Mutation(
        "a Spark batch that was not decided is committed by the next driver",
        "spark/writer.py",
        "is_commit=name in decided)",
        "is_commit=True)",
        ("tests/spark/test_sink.py",),
    ),
    Mutation(
        "a Spark batch that counts is written again",
        "spark/writer.py",
        "if gate.last is not None and gate.last.covers(query_id, batch_id):",
        "if False:",
        ("tests/spark/test_sink.py",),
    ),
    Mutation(
        "a Spark task reads beyond its range",
        "spark/reader.py",
        "(columns.offset >= start) & (columns.offset < end)",
        "columns.offset >= start",
        ("tests/spark/test_reader.py",),
    ),
    Mutation(
        "aborted records are read",
        "spark/aborted.py",
        "return header.is_transactional and header.producer_id in self._producers",
        "return False",
        ("tests/spark/test_aborted.py",),
    ),
)


def main() -> int:
    missed = [mutation for mutation in MUTATIONS if not is_caught(mutation)]
    for mutation in missed:
        print(f"NOT CAUGHT: {mutation.name}")
    print(f"{len(MUTATIONS) - len(missed)} of {len(MUTATIONS)} caught")
    return 1 if missed else 0


def is_caught(mutation: Mutation) -> bool:
    """Whether a test fails, with the bug in; without it they pass, as `make test` shows."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "src")
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / "penstock" / mutation.path
        text = path.read_text()
        if text.count(mutation.sound) != 1:
            raise SystemExit(
                f"{mutation.path} has changed: {mutation.sound!r} is there {text.count(mutation.sound)} times"
            )
        path.write_text(text.replace(mutation.sound, mutation.wrong))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    print(f"{mutation.name}: {failed[0] if failed else f'exit code {done.returncode}'}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
