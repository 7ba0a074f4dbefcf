"""Exactly once: orders become invoices, each order one invoice, whatever breaks on the way.

    penstock serve                                # in another terminal
    python examples/exactly_once.py

The first workers fail in the middle of their work: what they had published for unfinished orders is never seen, and
whoever comes next handles those orders.
"""

import argparse

from confluent_kafka.admin import AdminClient, NewTopic

import penstock

ORDERS = 100


class Accident(Exception):
    """Stands for a bug, a full disk, a power cut."""


def write_invoices(bootstrap: str, orders: str, invoices: str, *, fails_after: int | None = None) -> None:
    """Until no order has come for three seconds."""
    handled = 0
    with penstock.connect(bootstrap) as queue, queue.process(orders, group="invoicing", batch=10, timeout=3) as step:
        for order in step:
            step.publish(invoices, b"invoice for " + (order.value or b""), key=order.key)
            handled += 1
            if handled == fails_after:
                raise Accident


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    parser.add_argument("--topic", default="shop-orders")
    options = parser.parse_args()
    bootstrap, orders, invoices = options.bootstrap_server, options.topic, f"{options.topic}-invoices"

    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(orders, num_partitions=2), NewTopic(invoices, num_partitions=1)]
    for made in admin.create_topics(new).values():
        made.exception(10)  # There already: fine.

    with penstock.connect(bootstrap) as queue:
        with queue.transaction():  # All orders come in together, or none.
            for number in range(ORDERS):
                queue.publish(orders, f"order {number}", key=str(number))

        for fails_after in (15, 25):
            try:
                write_invoices(bootstrap, orders, invoices, fails_after=fails_after)
            except Accident:
                print(f"an accident after {fails_after} orders, of which {fails_after % 10} will be handled again")
        write_invoices(bootstrap, orders, invoices)

        with queue.subscribe(invoices, group="audit", timeout=3) as messages:
            written = [message.value for message in messages]
    print(f"{len(written)} invoices for {len(set(written))} orders")


if __name__ == "__main__":
    main()
