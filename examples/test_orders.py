"""How to test code that speaks Kafka: copy this file, and run it with pytest.

`penstock_broker` and `penstock_topic` are fixtures that come with Penstock: a real broker in this process, and a topic
of its own for each test. The code under test is any Kafka code; here it uses confluent-kafka.
"""

import json

from confluent_kafka import Consumer, Producer

# The code under test. Yours would be imported.


def place_order(producer: Producer, topic: str, order_id: int, amount: int) -> None:
    producer.produce(topic, key=str(order_id), value=json.dumps({"id": order_id, "amount": amount}))


def total_of(consumer: Consumer, topic: str, orders: int) -> int:
    """The sum of the next `orders` orders."""
    consumer.subscribe([topic])
    total = 0
    while orders:
        message = consumer.poll(10)
        assert message is not None and message.error() is None, "no order came within ten seconds"
        total += json.loads(message.value())["amount"]
        orders -= 1
    consumer.commit(asynchronous=False)
    return total


# The tests.


def test_orders_add_up(penstock_broker, penstock_topic):
    producer = Producer({"bootstrap.servers": penstock_broker.bootstrap_servers})
    place_order(producer, penstock_topic, 1, amount=30)
    place_order(producer, penstock_topic, 2, amount=12)
    producer.flush(10)

    consumer = new_consumer(penstock_broker, group="billing")
    assert total_of(consumer, penstock_topic, orders=2) == 42
    consumer.close()


def test_a_restart_goes_on_where_it_stopped(penstock_broker, penstock_topic):
    producer = Producer({"bootstrap.servers": penstock_broker.bootstrap_servers})
    for order_id in range(3):
        place_order(producer, penstock_topic, order_id, amount=10**order_id)
    producer.flush(10)

    totals = []
    for orders in (1, 2):
        consumer = new_consumer(penstock_broker, group="restarted")
        totals.append(total_of(consumer, penstock_topic, orders))
        consumer.close()
    assert totals == [1, 110]


def test_an_order_waits_for_a_week_and_not_longer(penstock_broker):
    week_s = 7 * 24 * 3600
    topic = penstock_broker.create_topic(config={"retention.ms": week_s * 1000})
    producer = Producer({"bootstrap.servers": penstock_broker.bootstrap_servers})
    place_order(producer, topic, 1, amount=30)
    producer.flush(10)

    penstock_broker.advance(week_s + 600)  # No waiting: the broker's clock jumps.

    consumer = new_consumer(penstock_broker, group="late")
    consumer.subscribe([topic])
    assert consumer.poll(1) is None
    consumer.close()


def new_consumer(broker, group):
    return Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"})
