"""A server under measurement: one process with its data in a folder of its own, gone when it is left."""

import abc
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.process import CpuLaps, MeasuredProcess
from ports import HOST, free_port, is_open

START_S_MAX = 60


class Server(abc.ABC):
    name: str

    def __init__(self, directory: Path) -> None:
        self._home = tempfile.TemporaryDirectory(prefix=f"{self.name.split()[0].lower()}-", dir=directory)
        self.directory = Path(self._home.name)
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"
        self.env: dict[str, str] = {}
        self._process: MeasuredProcess | None = None
        self.start_s = 0.0

    @abc.abstractmethod
    def command(self) -> list[str]: ...

    @abc.abstractmethod
    def prepare(self) -> None:
        """What is done once, before the first start: not part of the time that a start takes."""

    def is_ready(self) -> bool:
        return is_open(self.port)

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self._start(self.command())
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def process(self) -> MeasuredProcess:
        assert self._process, f"{self.name} was not started"
        return self._process

    def cpu_laps(self) -> CpuLaps:
        return CpuLaps(self.process)

    def stop(self) -> None:
        if self._process:
            self._process.stop()
        self._home.cleanup()

    def _start(self, command: list[str]) -> None:
        begun = time.perf_counter()
        self._process = MeasuredProcess(command, self.directory / "log", self.env)
        while not self.is_ready():
            if not self.process.is_running or time.perf_counter() - begun > START_S_MAX:
                raise RuntimeError(f"{self.name} did not start: {self.process.log.read_text()[-2000:]}")
            time.sleep(0.005)
        self.start_s = time.perf_counter() - begun
