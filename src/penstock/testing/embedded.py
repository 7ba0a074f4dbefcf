"""A real broker in this process: its event loop in a thread, its data in a directory that goes when it stops."""

import asyncio
import itertools
import re
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from penstock.testing.settings import Setting
from penstock.testing.virtual_time import VirtualTime, VirtualTimeLoop

if TYPE_CHECKING:
    from penstock.testing.wiring import Calls

T = TypeVar("T")

START_TIMEOUT_S = 30.0  # A start takes about 20 ms; so long only on a machine that is out of breath.
CALL_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
TOPIC_NAME_MAX = 200  # Kafka allows 249; the rest is for a number.


def broker(
    settings: Mapping[str, Setting] | None = None, *, durability: Literal["os", "fsync"] = "os"
) -> "EmbeddedBroker":
    """A broker for a `with` block. `settings` has Kafka's keys: `{"num.partitions": 3}`.

    `durability="os"` leaves flushing to the operating system, which is enough for a process that dies with its data;
    "fsync" waits for the disk before each ack, as a broker in production does.
    """
    return EmbeddedBroker(settings or {}, durability=durability)


class EmbeddedBroker:
    """Use it as a context manager, or call `start` and `stop`. All methods may be called from any thread."""

    def __init__(self, settings: Mapping[str, Setting], *, durability: str = "os") -> None:
        self.bootstrap_servers = ""  # "127.0.0.1:port", once it is started.
        self._settings = dict(settings)
        self._durability = durability
        self._clock = VirtualTime()
        self._thread: threading.Thread | None = None
        self._calls: Calls | None = None
        self._topic_numbers = itertools.count(1)

    def start(self) -> Self:
        """Return when clients can connect. Raises what kept the broker from starting, such as a bad setting."""
        if self._thread is not None:
            raise RuntimeError("This broker has been started already: make another with penstock.testing.broker().")
        ready: Future[Calls] = Future()
        # A daemon: a test run that is broken off must not hang on a broker that nobody stopped.
        self._thread = threading.Thread(target=self._run, args=(ready,), name="penstock broker", daemon=True)
        self._thread.start()
        try:
            self._calls = ready.result(START_TIMEOUT_S)
        except BaseException:
            self._thread.join(STOP_TIMEOUT_S)
            raise
        self.bootstrap_servers = self._calls.address
        return self

    def stop(self) -> None:
        """Return when the port is closed, the thread has ended and the data is gone. Twice is as good as once."""
        calls, self._calls = self._calls, None
        if calls is not None and self._thread is not None:
            calls.stop()
            self._thread.join(STOP_TIMEOUT_S)

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, config: Mapping[str, Setting] | None = None
    ) -> str:
        """The name of a topic that is ready for use; without `name`, one that no other topic has.

        `config` has Kafka's keys: `{"cleanup.policy": "compact"}`. ValueError when the broker refuses.
        """
        name = name if name is not None else self.unused_topic_name()
        self._call(lambda calls: calls.create_topic(name, partitions, config or {}))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete the topic with all its records. ValueError when there is none."""
        self._call(lambda calls: calls.delete_topic(name))

    def topics(self) -> list[str]:
        """The names of all topics, sorted, without Kafka's internal ones."""
        return self._call(lambda calls: calls.topics())

    def unused_topic_name(self, like: str = "topic") -> str:
        """A name that this method has not given before: `like`, as far as a topic may be called so, and a number."""
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', like)[:TOPIC_NAME_MAX]}-{next(self._topic_numbers)}"

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass for the broker at once: what is due by then has happened, or begun, on return.

        Clients do not feel it. A member of a group whose session ends meanwhile is thrown out, though its client may
        be well, because its heartbeats take real time; the client then joins again.
        """
        if seconds < 0:
            raise ValueError(f"Time cannot go back: advance({seconds}).")
        self._call(lambda calls: calls.advance(seconds))

    def now_ms(self) -> int:
        """The broker's idea of the time, in milliseconds since 1970."""
        return self._clock.now_ms()

    def _call(self, work: "Callable[[Calls], Coroutine[Any, Any, T]]") -> T:
        calls = self._calls
        if calls is None:
            raise RuntimeError("The broker is not running: use it inside `with penstock.testing.broker() as b:`.")
        return asyncio.run_coroutine_threadsafe(work(calls), calls.loop).result(CALL_TIMEOUT_S)

    def _run(self, ready: "Future[Calls]") -> None:
        try:
            with (
                tempfile.TemporaryDirectory(prefix="penstock-test-") as data_dir,
                asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(self._clock)) as runner,
            ):
                runner.run(self._serve(data_dir, ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, data_dir: str, ready: "Future[Calls]") -> None:
        # Imported here, in a thread of its own: whoever only imports this module does not pay for a broker.
        from penstock.testing.wiring import running_broker

        async with running_broker(self._settings, self._durability, data_dir, self._clock) as calls:
            ready.set_result(calls)
            await calls.stopping.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
