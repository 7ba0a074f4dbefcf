"""Ending a ZooKeeper session from outside: whoever has its id and password may close it."""

import asyncio

from penstock.cluster.store.zookeeper import jute
from penstock.cluster.store.zookeeper.store import ZooKeeperStore


async def end_session(store: ZooKeeperStore) -> None:
    """Have the server do to the store's session what it does when its time is up."""
    session = store._session
    host, port = session._servers[0]
    reader, writer = await asyncio.open_connection(host, port)
    for packet in (
        jute.connect(0, 10_000, session.id, session._password),
        jute.request(1, jute.Type.CLOSE),
    ):
        writer.write(len(packet).to_bytes(4, "big") + packet)
    await reader.read()  # Until the server closes.
    writer.close()
