"""Consumer groups of every client: members come, go, die and come back; each record is read, in one place at a time.

All stories run side by side, since they spend most of their time waiting for sessions to end.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from .broker import Broker
from .group_member import (
    AIOKAFKA,
    CONFLUENT,
    CONFLUENT_848,
    CONFLUENT_PATTERN,
    FRANZ_GO,
    JAVA,
    JAVA_848,
    JAVA_848_RANGE,
    JAVA_PATTERN,
    KAFKA_PYTHON,
    KAFKAJS,
    MemberKind,
)
from .group_story import Group, full_story, migration_story, open_group, paused_story, short_story
from .missing_parts import skip_when_missing

STORIES_AT_ONCE = 4


@dataclass(frozen=True)
class Story:
    name: str
    assignor: str
    kinds: tuple[MemberKind, ...]
    tell: Callable[[Group, Sequence[MemberKind]], None]


STORIES = [
    Story("java-range", "range", (JAVA,), full_story),
    Story("confluent-kafka-range", "range", (CONFLUENT,), full_story),
    Story("confluent-kafka-roundrobin", "roundrobin", (CONFLUENT,), full_story),
    Story("confluent-kafka-cooperative-sticky", "cooperative-sticky", (CONFLUENT,), full_story),
    Story("five-clients-range", "range", (CONFLUENT, KAFKA_PYTHON, JAVA, FRANZ_GO, AIOKAFKA), short_story),
    Story("three-clients-cooperative-sticky", "cooperative-sticky", (FRANZ_GO, CONFLUENT, JAVA), short_story),
    Story("kafka-python-range", "range", (KAFKA_PYTHON,), full_story),
    Story("aiokafka-roundrobin", "roundrobin", (AIOKAFKA,), full_story),
    Story("kafkajs-roundrobin", "roundrobin", (KAFKAJS,), paused_story),
    Story("confluent-kafka-848", "range", (CONFLUENT_848,), full_story),
    Story("java-848", "range", (JAVA_848,), full_story),
    Story("both-848", "range", (JAVA_848_RANGE, CONFLUENT_848, JAVA_848), short_story),
    Story("by-pattern", "range", (JAVA_PATTERN, CONFLUENT_PATTERN, CONFLUENT_848), short_story),
    Story("eager-to-848-and-back", "range", (CONFLUENT, JAVA, JAVA_848, CONFLUENT_848), migration_story),
    Story(
        "cooperative-to-848-and-back",
        "cooperative-sticky",
        (JAVA, CONFLUENT, CONFLUENT_848, JAVA_848),
        migration_story,
    ),
    Story("franz-go-cooperative-sticky", "cooperative-sticky", (FRANZ_GO,), full_story),
]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, group_broker: Broker, topic_prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    directory = tmp_path_factory.mktemp("groups")
    chosen = [item.callspec.params["story"] for item in request.session.items if _is_a_story(item)]

    def run(story: Story) -> None:
        name = f"{topic_prefix}-{story.name}"
        with open_group(group_broker.bootstrap, directory / story.name, name, story.assignor) as group:
            story.tell(group, story.kinds)

    with ThreadPoolExecutor(STORIES_AT_ONCE) as threads:
        yield {story.name: threads.submit(run, story) for story in chosen}


def _is_a_story(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.function is test_every_record_is_read_by_one_owner_at_a_time


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_every_record_is_read_by_one_owner_at_a_time(outcomes: dict[str, Future[None]], story: Story) -> None:
    with skip_when_missing(f"consumer group: {story.name}"):
        outcomes[story.name].result()
