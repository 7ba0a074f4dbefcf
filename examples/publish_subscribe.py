"""Publish and subscribe: every group gets every message, each at its own pace. With asyncio.

penstock serve                                # in another terminal
python examples/publish_subscribe.py
"""

import argparse
import asyncio

import penstock
from penstock.client import AsyncConnection

GROUPS = ("billing", "shipping", "statistics")
ORDERS = 5


async def follow(connection: AsyncConnection, topic: str, group: str) -> None:
    seen = 0
    async with connection.subscribe(topic, group=group) as orders:
        async for order in orders:
            print(f"{group} hears of {order.value!r}")
            seen += 1
            if seen == ORDERS:
                break


async def publish(connection: AsyncConnection, topic: str) -> None:
    for number in range(ORDERS):
        await connection.publish(topic, f"order {number}", key=str(number), headers={"source": "example"})


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    options = parser.parse_args()

    async with await penstock.connect_async(options.bootstrap_server) as connection, asyncio.TaskGroup() as tasks:
        for group in GROUPS:
            tasks.create_task(follow(connection, options.topic, group))
        tasks.create_task(publish(connection, options.topic))


if __name__ == "__main__":
    asyncio.run(main())
