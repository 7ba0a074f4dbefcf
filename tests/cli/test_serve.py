"""Starting, stopping and refusing to start."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from broker_process import BrokerProcess
from penstock.cli.main import main
from penstock.cli.serve import plain_options
from ports import free_port

from .conftest import PENSTOCK, TIMEOUT_S, run_penstock

IDLE_MB_MAX = 80
START_S_MAX = 0.8  # 0.3 on a quiet machine; a neighbour on the same core doubles it


def test_welcome_has_three_lines_that_work(broker: BrokerProcess) -> None:
    """Pasted as they are, they create a topic, publish and subscribe."""
    create, publish, subscribe = (line.strip() for line in broker.welcome().splitlines() if line.startswith("  "))
    assert f"-b {broker.bootstrap}" in create
    command = " ".join(f"'{word}'" for word in PENSTOCK)
    for line in (create, publish, subscribe.removesuffix(" --follow") + " --count 1"):
        before, _, after = line.partition("penstock ")
        before = before.removesuffix(".venv/bin/")
        done = subprocess.run(
            before + f"{command} {after}", shell=True, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "Hello, world\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_broker_starts_at_once_and_stays_small(tmp_path: Path) -> None:
    """Counted in processor time, the best of three: the machine may be busy with other tests."""
    seconds = []
    for attempt in range(3):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with BrokerProcess(directory).serving() as broker:
            seconds.append(broker.cpu_s())
            assert broker.rss_bytes() < IDLE_MB_MAX << 20
    assert min(seconds) < START_S_MAX


def test_broker_does_not_import_what_only_clients_need(broker: BrokerProcess) -> None:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    maps = Path(f"/proc/{broker.pid}/maps").read_text()
    assert "confluent_kafka" not in maps
    code = (
        "import sys; from penstock.cli import main; from penstock.server import broker; "
        "broker.run = lambda *_, **options: print(*sys.modules) or 0; main.main(['serve'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"typer", "rich", "confluent_kafka"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop(number)  # Which looks at exit code and log.


def test_port_in_use(broker: BrokerProcess, tmp_path: Path) -> None:
    failed = run_penstock("serve", "--listen", broker.bootstrap, "--data", tmp_path)
    assert failed.code == 1
    assert f"error: Cannot listen on {broker.bootstrap}: the port is in use." in failed.err
    assert "--listen" in failed.err.partition("hint:")[2]
    assert "Traceback" not in failed.err


def test_data_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = run_penstock("serve", "--listen", f"localhost:{free_port()}", "--data", tmp_path / "file" / "data")
    assert failed.code == 1
    assert f"Cannot use the data directory {tmp_path / 'file' / 'data'}" in failed.err
    assert "--data DIR" in failed.err
    assert "Traceback" not in failed.err


def test_data_directory_of_another_broker(broker: BrokerProcess) -> None:
    failed = run_penstock("serve", "--listen", f"localhost:{free_port()}", "--data", broker.data)
    assert failed.code == 1
    assert "another broker is using" in failed.err
    assert "Traceback" not in failed.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_nobody_needs_to_read_the_greeting(tmp_path: Path) -> None:
    address = f"localhost:{free_port()}"
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [*PENSTOCK, "serve", "--listen", address, "--data", tmp_path / "data"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stderr is not None
    assert any("broker started" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0


def test_all_addresses_need_one_that_clients_can_use(tmp_path: Path) -> None:
    address = f"0.0.0.0:{free_port()}"
    failed = run_penstock("serve", "--listen", address, "--data", tmp_path)
    assert failed.code == 1
    assert "all of this machine's addresses" in failed.err
    port = address.rpartition(":")[2]
    assert f"--advertised {socket.gethostname()}:{port}" in failed.err.partition("hint:")[2]
    # A bad choice is not better than none.
    failed = run_penstock("serve", "--listen", address, "--advertised", address, "--data", tmp_path)
    assert (failed.code, "a host that clients can reach" in failed.err) == (1, True)
    assert "--advertised" in failed.err.partition("hint:")[2]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")
def test_clients_are_sent_to_the_advertised_address(tmp_path: Path) -> None:
    """Whoever comes to another address of the machine goes on at the one that is advertised."""
    port = free_port()
    command = [*PENSTOCK, "serve", "--listen", f"0.0.0.0:{port}", "--advertised", f"127.0.0.2:{port}"]
    process = subprocess.Popen([*command, "--data", tmp_path / "data"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    welcome = [process.stdout.readline() for _ in range(2)]
    assert f"listens on localhost:{port}" in welcome[0]
    assert welcome[1] == f"All clients are sent to 127.0.0.2:{port}.\n"
    admin = AdminClient({"bootstrap.servers": f"localhost:{port}"})
    assert [str(broker) for broker in admin.list_topics(timeout=TIMEOUT_S).brokers.values()] == [f"127.0.0.2:{port}/1"]
    assert run_penstock("topics", "create", "t", "-b", f"localhost:{port}").code == 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


@pytest.mark.parametrize("option", ["--listen", "--advertised"])
@pytest.mark.parametrize("address", ["localhost", "9092", "localhost:99999", "::1:9092", "localhost:http"])
def test_bad_address(option: str, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", option, address]) == 2
    assert f"{option} {address} is not an address" in capsys.readouterr().err


def test_options_override_the_properties_file(tmp_path: Path) -> None:
    address = f"localhost:{free_port()}"
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"# A comment\nnode.id=3\nlisteners=PLAINTEXT://{address}\nlog.dirs={tmp_path}/ignored\nnum.partitions=4\n"
    )
    process = subprocess.Popen(
        [*PENSTOCK, "serve", "--config", properties, "--data", tmp_path / "used", "--node-id=7"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert address in process.stdout.readline()
    created = run_penstock("topics", "create", "t", "-b", address)
    described = run_penstock("topics", "describe", "t", "-b", address, "--json").json
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    assert created.code == 0
    assert [partition["leader"] for partition in described[0]["partitions"]] == [7, 7, 7, 7]
    assert (tmp_path / "used").is_dir()
    assert not (tmp_path / "ignored").exists()


def test_unknown_setting(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("num.partition=4\n")
    failed = run_penstock("serve", "--config", properties, "--data", tmp_path / "data")
    assert failed.code == 1
    assert "num.partition" in failed.err
    missing = run_penstock("serve", "--config", tmp_path / "missing")
    assert "Cannot read the configuration file" in missing.err


def test_plain_options_leave_the_rest_to_typer() -> None:
    assert plain_options([]) == {}
    assert plain_options(["--listen", "h:1", "--advertised", "a:2", "--data=d", "--node-id", "2"]) == {
        "listen": "h:1",
        "advertised": "a:2",
        "data": "d",
        "node_id": 2,
    }
    for odd in (["--help"], ["--listen"], ["--node-id", "x"], ["--lissten", "h:1"], ["extra", "word"]):
        assert plain_options(odd) is None
