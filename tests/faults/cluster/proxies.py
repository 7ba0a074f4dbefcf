"""Proxies on a thread of their own, for tests that are plain functions."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from cuttable_proxy import CuttableProxy
from ports import HOST


class ProxyThread:
    """Makes proxies that can be cut; everything that they do is on one loop, on one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: list[CuttableProxy] = []

    def start(self) -> None:
        self._thread.start()

    def open_proxy(self, target_port: int, listen_host: str = HOST) -> CuttableProxy:
        async def opened() -> CuttableProxy:
            proxy = CuttableProxy(target_port, listen_host=listen_host)
            await proxy.start()
            return proxy

        self._proxies.append(self._wait_for(opened()))
        return self._proxies[-1]

    def call(self, function: Callable[[], None]) -> None:
        """Have one of the proxies' methods done, and wait until it is."""

        async def called() -> None:
            function()

        self._wait_for(called())

    def close(self) -> None:
        for proxy in self._proxies:
            self._wait_for(proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _wait_for(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)
