"""Redis with an append-only file."""

from bench.server import Server
from compat.parts.system import from_path_or_apt
from ports import HOST


class Redis(Server):
    name = "Redis streams"

    def prepare(self) -> None:
        self._program = from_path_or_apt("redis-server", "redis-server")

    def command(self) -> list[str]:
        listen = ["--bind", HOST, "--port", str(self.port)]
        # Snapshots are off: the append-only file is what an acknowledged record is in.
        durability = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        return [self._program, *listen, "--dir", str(self.directory), *durability]
