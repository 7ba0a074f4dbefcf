"""What every coordinator does again and again."""

import asyncio
from types import SimpleNamespace
from typing import Any

from penstock.base.types import NodeId
from penstock.coordinator.decision import Decision, Now
from penstock.coordinator.runtime import CoordinatorRuntime, CoordinatorTopic


def test_a_pass_that_fails_is_not_the_last_one() -> None:
    """Nobody would abort what times out any more, and readers would wait for ever."""
    passes: list[str] = []
    enough = asyncio.Event()

    def decide(shard: str, now: Now) -> Decision[Any]:
        passes.append(shard)
        if len(passes) >= 4:
            enough.set()
        if passes == ["broken"]:
            raise KeyError("a bug")
        return Decision()

    def runner(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            shard=name, is_loaded=True, run=lambda decide: decide(Now(0, 0)), close=lambda code: None, is_leading=True
        )

    async def main() -> None:
        topic = CoordinatorTopic(name="t", partition_count=1, replication_factor=1, config={})
        others = dict.fromkeys(("new_shard", "codec", "create_topics", "partitions", "clock", "timers", "fs"))
        runtime: CoordinatorRuntime[Any] = CoordinatorRuntime(node_id=NodeId(1), topic=topic, **others)  # type: ignore[arg-type]
        runtime._runners = {0: runner("broken"), 1: runner("sound")}  # type: ignore[dict-item]
        runtime.run_every(1, decide, "passes")
        await asyncio.wait_for(enough.wait(), 30)
        await runtime.stop()

    asyncio.run(main())
    assert passes[:4] == ["broken", "sound", "broken", "sound"]
