"""NATS with JetStream."""

from bench.server import Server
from compat.parts.system import from_path_or_apt
from ports import HOST


class Nats(Server):
    name = "NATS JetStream"

    def prepare(self) -> None:
        self._program = from_path_or_apt("nats-server", "nats-server")

    def command(self) -> list[str]:
        listen = ["--addr", HOST, "--port", str(self.port)]
        return [self._program, *listen, "--jetstream", "--store_dir", str(self.directory / "data")]
