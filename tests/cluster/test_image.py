import time
from uuid import UUID

from images import after, changes_of, cluster

from penstock.base.config import BrokerConfig
from penstock.base.types import NO_NODE, LeaderEpoch, NodeId, TopicPartition
from penstock.cluster import records
from penstock.cluster.image import EMPTY_IMAGE, BrokerRegistration, PartitionState, apply, changed_topics
from penstock.cluster.records import PartitionStateRecord, TopicRecord
from penstock.cluster.store.base import Change, Delete, Entry, Put, Write

ID = UUID(int=7)
ONE = NodeId(1)
TWO = NodeId(2)


def topic(name: str, partitions: int = 1, topic_id: UUID = ID) -> list[Write]:
    record = TopicRecord(topic_id, ((ONE, TWO),) * partitions)
    return [
        Put(records.topic_key(name), records.encode_topic(record)),
        *(state(name, partition) for partition in range(partitions)),
    ]


def state(name: str, partition: int, leader: NodeId = ONE, epoch: int = 0) -> Write:
    record = PartitionStateRecord(leader, LeaderEpoch(epoch), (ONE, TWO), epoch)
    return Put(records.partition_state_key(name, partition), records.encode_partition_state(record))


def test_brokers_come_and_go_with_their_epoch() -> None:
    key = records.broker_key(ONE)
    value = records.encode_broker(records.BrokerRecord("h", 9092, "r"))
    image = apply(EMPTY_IMAGE, [Change(key, Entry(key, value, version=9, created=5))])
    assert image.brokers == {1: (1, "h", 9092, "r", 5, "", False)}
    assert apply(image, [Change(key, None)]).brokers == {}


def test_controller_leaves_with_its_key() -> None:
    image = cluster()
    assert (image.cluster_id, image.controller_id, image.controller_epoch) == ("test", 1, 1)
    assert after(image, [Delete(records.CONTROLLER)]).controller_id == NO_NODE


def test_topic_is_found_by_name_id_and_partition() -> None:
    image = after(EMPTY_IMAGE, topic("t", 2))
    assert image.topic_by_id(ID) is image.topics["t"]
    assert image.topic_by_id(UUID(int=8)) is None
    found = image.partition(TopicPartition("t", 1))
    assert found is not None
    assert found[:6] == (1, (1, 2), (1, 2), 1, 0, 0)
    for absent in (("t", 2), ("t", -1), ("u", 0)):
        assert image.partition(TopicPartition(*absent)) is None


def test_order_of_keys_within_a_commit_does_not_matter() -> None:
    changes = changes_of([*topic("t", 3), Put(records.topic_config_key("t"), records.encode({"retention.ms": "1"}))])
    assert apply(EMPTY_IMAGE, changes) == apply(EMPTY_IMAGE, reversed(changes))


def test_partition_without_a_state_has_no_leader_yet() -> None:
    image = after(EMPTY_IMAGE, topic("t")[:1])
    assert image.topics["t"].partitions == (PartitionState(0, (ONE, TWO), (), NO_NODE, LeaderEpoch(0), 0),)


def test_a_change_of_one_partition_leaves_the_others_shared() -> None:
    old = after(after(EMPTY_IMAGE, topic("t", 3)), topic("u", 1, UUID(int=8)))
    new = after(old, [state("t", 1, leader=TWO, epoch=1)])
    assert new.topics["t"].partitions[1].leader == TWO
    assert new.topics["t"].partitions[0] is old.topics["t"].partitions[0]
    assert new.topics["u"] is old.topics["u"]
    assert changed_topics(old, new) == ["t"]
    assert old.topics["t"].partitions[1].leader == ONE


def test_added_partitions_keep_the_state_of_the_first_ones() -> None:
    old = after(EMPTY_IMAGE, [*topic("t", 2), state("t", 0, leader=TWO, epoch=4)])
    new = after(old, [topic("t", 3)[0], state("t", 2)])
    assert [partition.leader for partition in new.topics["t"].partitions] == [TWO, ONE, ONE]


def test_deleted_topic_is_gone_whatever_else_is_deleted_with_it() -> None:
    old = after(EMPTY_IMAGE, topic("t"))
    keys = [records.topic_config_key("t"), records.partition_state_key("t", 0), records.topic_key("t")]
    new = after(old, [Delete(key) for key in keys])
    assert (new.topics, new.topic_names) == ({}, {})
    assert changed_topics(old, new) == ["t"]


def test_topic_made_anew_has_nothing_of_the_old_one() -> None:
    config = Put(records.topic_config_key("t"), records.encode({"retention.ms": "1"}))
    old = after(EMPTY_IMAGE, [*topic("t", 2), config])
    new = after(old, [*topic("t", 1, UUID(int=9)), Delete(config.key)])
    assert new.topics["t"].config == {}
    assert len(new.topics["t"].partitions) == 1
    assert new.topic_names == {UUID(int=9): "t"}


def test_a_large_topic_whose_states_come_first_appears_as_a_whole() -> None:
    key, first, second = topic("t", 2)
    image = after(after(EMPTY_IMAGE, [first]), [second])
    assert image.topics == {}
    assert sorted(image.unplaced["t"]) == [0, 1]
    whole = after(image, [key])
    assert [partition.leader for partition in whole.topics["t"].partitions] == [ONE, ONE]
    assert [partition.replicas for partition in whole.topics["t"].partitions] == [(ONE, TWO)] * 2
    assert whole.unplaced == {}


def test_added_partitions_whose_states_come_first_appear_with_the_topics_key() -> None:
    image = after(after(EMPTY_IMAGE, topic("t", 1)), [state("t", 1, leader=TWO)])
    assert (len(image.topics["t"].partitions), sorted(image.unplaced["t"])) == (1, [1])
    grown = after(image, topic("t", 2)[:1])
    assert [partition.leader for partition in grown.topics["t"].partitions] == [ONE, TWO]
    assert grown.unplaced == {}


def test_states_that_outlive_their_topic_are_known_and_not_taken_for_those_of_the_next() -> None:
    old = after(EMPTY_IMAGE, topic("t", 3))
    gone = after(old, [Delete(records.topic_key("t")), Delete(records.partition_state_key("t", 0))])
    assert (gone.topics, sorted(gone.unplaced["t"])) == ({}, [1, 2])
    anew = after(old, [*topic("t", 1, UUID(int=9))])  # The store has seen both commits as one.
    assert (len(anew.topics["t"].partitions), sorted(anew.unplaced["t"])) == (1, [1, 2])
    tidy = after(anew, [Delete(records.partition_state_key("t", number)) for number in (1, 2)])
    assert (len(tidy.topics["t"].partitions), tidy.unplaced) == (1, {})


def test_replicas_of_a_state_count_more_than_those_that_the_topic_was_made_with() -> None:
    record = PartitionStateRecord(TWO, LeaderEpoch(1), (TWO,), 1, (5,), replicas=(TWO, ONE), adding=(TWO,))
    put = Put(records.partition_state_key("t", 0), records.encode_partition_state(record))
    image = after(after(EMPTY_IMAGE, topic("t", 1)), [put])
    for later in (image, after(image, topic("t", 2)[:1]), after(EMPTY_IMAGE, [topic("t", 1)[0], put])):
        found = later.topics["t"].partitions[0]
        assert (found.replicas, found.adding, found.isr_epochs) == ((TWO, ONE), (TWO,), (5,))


def test_a_leader_that_registered_anew_does_not_lead_unless_it_is_alone() -> None:
    broker = BrokerRegistration(ONE, "h", 1, None, epoch=5)
    led = PartitionState(0, (ONE, TWO), (TWO, ONE), ONE, LeaderEpoch(0), 0, isr_epochs=(3, 5))
    assert led.is_led_by(broker)
    assert not led.is_led_by(broker._replace(epoch=6))
    assert not led.is_led_by(broker._replace(node_id=TWO, epoch=3))
    assert led._replace(replicas=(ONE,), isr=(ONE,), isr_epochs=(5,)).is_led_by(broker._replace(epoch=6))
    assert led._replace(isr_epochs=()).is_led_by(broker)  # Written before epochs were kept.


def test_settings_come_from_the_topic_then_the_broker_then_all_brokers_then_the_file() -> None:
    static = BrokerConfig.load({"log.segment.bytes": "4096", "log.retention.ms": "1", "num.partitions": "2"})
    image = after(
        cluster(),
        [
            *topic("t"),
            Put(records.topic_config_key("t"), records.encode({"max.message.bytes": "5"})),
            Put(records.broker_config_key("1"), records.encode({"log.retention.ms": "2", "message.max.bytes": "6"})),
            Put(
                records.broker_config_key(records.ALL_BROKERS),
                records.encode({"log.retention.ms": "3", "num.partitions": "4"}),
            ),
        ],
    )
    config = image.topic_config("t", static)
    assert (config.max_message_bytes, config.retention_ms, config.segment_bytes) == (5, 2, 4096)
    assert image.broker_config(static).num_partitions == 4
    cleared = after(image, [Delete(records.broker_config_key("1")), Delete(records.broker_config_key("<default>"))])
    assert cleared.broker_config(static) is static


def test_what_a_broker_cannot_use_of_its_own_settings_leaves_it_those_of_all_brokers() -> None:
    image = after(
        cluster(),
        [
            Put(records.broker_config_key("1"), records.encode({"log.retention.ms": "long", "num.partitions": "2"})),
            Put(
                records.broker_config_key(records.ALL_BROKERS),
                records.encode({"log.retention.ms": "-1", "num.partitions": "4"}),
            ),
        ],
    )
    config = image.broker_config(BrokerConfig())
    assert (config.topic_defaults.retention_ms, config.num_partitions) == (-1, 2)


def test_keys_of_later_versions_are_passed_over() -> None:
    assert after(EMPTY_IMAGE, [Put("/acls/t", b"{}")]) is EMPTY_IMAGE


def test_one_change_among_ten_thousand_partitions_is_quick() -> None:
    image = EMPTY_IMAGE
    for number in range(10):
        image = after(image, topic(f"t{number}", 1000, UUID(int=number + 1)))
    change = changes_of([state("t3", 500, leader=TWO, epoch=1)])
    started = time.thread_time()
    for _ in range(100):
        apply(image, change)
    assert time.thread_time() - started < 1  # 10 ms each would already be a stall; it takes about 0.03.
