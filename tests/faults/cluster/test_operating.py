"""docs/operating.md, tried line by line: its files start a cluster, its commands do what the page says.

Only names change: directories, addresses, and `systemctl`, for which the unit's own command line stands.
"""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from local_zookeeper import zookeeper_ensemble
from ports import HOST, free_port

PAGE = Path(__file__).parents[3] / "docs/operating.md"
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
RECORDS = 2_000
BROKERS = 3

pytestmark = pytest.mark.long


def blocks() -> list[str]:
    """The page's indented blocks, each without its indent."""
    found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", PAGE.read_text(), re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


PROPERTIES, UNIT, INSTALL, *COMMANDS = blocks()


class Host:
    """A machine of the guide: one broker, run as its unit says, with a directory in place of /etc and /var."""

    def __init__(self, number: int, root: Path, zookeeper: str) -> None:
        root.mkdir()
        self.data = root / "var"
        self.address = f"{HOST}:{free_port()}"
        self._unit, self._log = root / "penstock.service", root / "log"
        properties = root / "server.properties"
        properties.write_text(
            renamed(
                PROPERTIES,
                {
                    "node.id=1": f"node.id={number}",
                    "0.0.0.0:9092": self.address,
                    "broker1.example.com:9092": self.address,
                    "/var/lib/penstock": str(self.data),
                    "zk1:2181,zk2:2181,zk3:2181": zookeeper,
                    "machine-1": f"machine-{number}",
                },
            )
        )
        names = {"/opt/penstock/bin/penstock": PENSTOCK, "/etc/penstock/server.properties": str(properties)}
        self._unit.write_text(renamed(UNIT, names))
        self._process: subprocess.Popen[bytes] | None = None

    def check_unit(self) -> None:
        """systemd itself reads the unit, where there is one."""
        if shutil.which("systemd-analyze"):
            command = ["systemd-analyze", "verify", "--man=no", str(self._unit)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert result.returncode == 0, result.stderr
            assert self._unit.name not in result.stderr

    def start(self) -> None:
        (command,) = re.findall(r"^ExecStart=(.*)$", self._unit.read_text(), re.MULTILINE)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(shlex.split(command), stdout=log, stderr=log)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(120)  # TimeoutStopSec
        self._process = None
        assert code == (0 if number is signal.SIGTERM else -number), self.log[-4000:]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()


def renamed(text: str, names: dict[str, str]) -> str:
    for name, ours in names.items():
        assert name in text, f"the page has no {name!r} any more"
        text = text.replace(name, ours)
    return text


def shell(line: str, bootstrap: str, timeout_s: float = 120) -> str:
    """What a line of the page prints; it must succeed."""
    line = line.replace("HOST:PORT", bootstrap).replace("broker1.example.com:9092", bootstrap)
    line = re.sub(
        r"(^|until |/opt/penstock/bin/)penstock ",
        lambda m: m[1].replace("/opt/penstock/bin/", "") + f"{PENSTOCK} ",
        line,
    )
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=timeout_s)
    assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
    return result.stdout


def line_with(text: str) -> str:
    """The one line of the page's blocks that has `text`."""
    (line,) = [line for block in (INSTALL, *COMMANDS) for line in block.splitlines() if text in line]
    return line


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    with zookeeper_ensemble(tmp_path / "zookeeper", nodes=3) as ensemble:
        hosts = [Host(number, tmp_path / f"host-{number}", ensemble.connect) for number in range(1, BROKERS + 1)]
        try:
            for host in hosts:
                host.start()
            yield hosts
        finally:
            for host in hosts:
                host.close()


def publish(bootstrap: str, values: range) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce("orders", str(value).encode(), on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert set(failed) == {None}


def read(bootstrap: str) -> set[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    partitions = consumer.list_topics("orders", timeout=30).topics["orders"].partitions
    consumer.assign([TopicPartition("orders", number, 0) for number in partitions])
    found, ended = set(), set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, "the broker is silent"
        if message.error() is None:
            found.add(int(message.value()))
        else:
            ended.add(message.partition())
    consumer.close()
    return found


def test_the_production_guide(hosts: list[Host]) -> None:
    first, _, third = hosts
    wait_line = line_with("until penstock cluster status")
    hosts[0].check_unit()
    shell(wait_line, first.address)
    assert "3" in shell(line_with("/opt/penstock/bin/penstock cluster status"), first.address)

    # Every day
    shell(line_with("topics create"), first.address)
    publish(first.address, range(RECORDS))
    assert read(first.address) == set(range(RECORDS))
    for line in ("penstock cluster status -b HOST:PORT            #", "penstock groups lag", "penstock brokers list"):
        assert shell(line_with(line), first.address)

    # Restart, upgrade
    for number, host in enumerate(hosts):
        other = hosts[(number + 1) % BROKERS].address
        host.end()
        publish(other, range(RECORDS, RECORDS + 100))
        host.start()
        shell(wait_line, other)
    assert read(first.address) == set(range(RECORDS + 100))

    # A broker is lost for good: another takes its id, with an empty directory
    third.end(signal.SIGKILL)
    shutil.rmtree(third.data)
    third.start()
    shell(wait_line, first.address)
    assert read(third.address) == set(range(RECORDS + 100))

    # Backup: the directories of stopped brokers
    for host in hosts:
        host.end()
    for host in hosts:
        shutil.copytree(host.data, host.data.with_name("backup"))
        shutil.rmtree(host.data)
        host.data.with_name("backup").rename(host.data)
    for host in hosts:
        host.start()
    shell(wait_line, first.address)
    assert read(first.address) == set(range(RECORDS + 100))
    for host in hosts:
        assert "Traceback" not in host.log


def test_a_lost_brokers_partitions_go_to_those_who_are_left(hosts: list[Host]) -> None:
    """`penstock brokers drain ID`, when the broker will not come back."""
    first, _, third = hosts
    shell(line_with("until penstock cluster status"), first.address)
    shell("penstock topics create orders --partitions 12 --replication-factor 2 -b HOST:PORT", first.address)
    publish(first.address, range(RECORDS))
    third.end(signal.SIGKILL)
    shell("penstock brokers drain 3 --yes -b HOST:PORT", first.address, timeout_s=240)
    publish(first.address, range(RECORDS, RECORDS + 100))
    assert read(first.address) == set(range(RECORDS + 100))
    assert "under-replicated" not in shell("penstock cluster status -b HOST:PORT || true", first.address)
