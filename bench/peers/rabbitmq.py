"""RabbitMQ with its stream plugin and nothing else."""

import shutil
import subprocess
from pathlib import Path

from bench.server import Server
from compat.parts.cache import PartMissing
from compat.parts.system import from_path_or_apt
from ports import HOST, free_port


class RabbitMq(Server):
    name = "RabbitMQ streams"
    _epmd: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        wrapper = Path(from_path_or_apt("rabbitmq-server", "rabbitmq-server")).resolve()
        # Debian's wrapper changes to a user of its own, who may not write here; the script behind it does not.
        self._program = wrapper.with_name("rabbitmq-server")
        self._write_settings()
        self._start_epmd()

    def command(self) -> list[str]:
        return [str(self._program)]

    def stop(self) -> None:
        if self._process:
            self._process.stop()
        if self._epmd:
            self._epmd.terminate()
            self._epmd.wait()
        self._home.cleanup()

    def _write_settings(self) -> None:
        settings, plugins = self.directory / "rabbitmq.conf", self.directory / "enabled_plugins"
        settings.write_text(
            "listeners.tcp = none\n"
            f"stream.listeners.tcp.1 = {self.address}\n"
            f"stream.advertised_host = {HOST}\n"
            f"stream.advertised_port = {self.port}\n"
        )
        plugins.write_text("[rabbitmq_stream].\n")
        self.env = {
            "HOME": str(self.directory),  # Of Erlang's cookie.
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "none"),
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": HOST,
        }

    def _start_epmd(self) -> None:
        """Erlang's registry of nodes. RabbitMQ would start one that stays behind."""
        epmd = shutil.which("epmd")
        if not epmd:
            raise PartMissing("epmd is not on PATH; it comes with Erlang")
        self._epmd = subprocess.Popen([epmd], env=self.env)
