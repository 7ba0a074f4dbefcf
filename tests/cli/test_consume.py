import signal
import subprocess
from collections.abc import Callable
from datetime import datetime

import pytest

from .conftest import PENSTOCK, TIMEOUT_S, Result, on_a_terminal, run_penstock

Penstock = Callable[..., Result]
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def numbers(address: str) -> str:
    """A topic of one partition with the values 0 to 9, one a second from T0 on."""
    lines = "".join(f'{{"key": "k{n}", "value": "{n}", "timestamp": {T0 + 1000 * n}}}\n' for n in range(10))
    assert run_penstock("topics", "create", "numbers", "--partitions", "1", "-b", address).code == 0
    assert run_penstock("produce", "numbers", "--format", "json", "-b", address, stdin=lines).code == 0
    return "numbers"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", "0123456789"),
        ("latest", ""),
        ("7", "789"),
        ("-2", "89"),
        ("-99", "0123456789"),
        ("99", ""),
        (str(T0 + 8500), "9"),
        ("2023-11-14T22:13:25Z", "56789"),
        ("1h", ""),
    ],
)
def test_start(penstock: Penstock, numbers: str, start: str, expected: str) -> None:
    found = penstock("consume", numbers, "--from", start)
    assert found.code == 0, found.err
    assert "".join(found.out.split()) == expected


def test_count(penstock: Penstock, numbers: str) -> None:
    assert penstock("consume", numbers, "--from", "3", "--count", "2").out == "3\n4\n"


def test_formats(penstock: Penstock, numbers: str) -> None:
    assert penstock("consume", numbers, "-n", "1", "--format", "key-value").out == "k0\t0\n"
    assert penstock("consume", numbers, "-n", "1", "--format", "%t/%p/%o/%T").out == f"numbers/0/0/{T0}\n"
    table = penstock("consume", numbers, "--from", "-1", "--format", "table").out.splitlines()
    assert table[0].split() == ["PARTITION", "OFFSET", "TIME", "KEY", "VALUE"]
    newest = datetime.fromtimestamp((T0 + 9000) / 1000).strftime("%Y-%m-%d %H:%M:%S.000")
    assert table[1].split() == ["0", "9", *newest.split(), "k9", "9"]
    assert penstock("consume", numbers, "-n", "1", "--json").json_lines == [
        {"topic": "numbers", "partition": 0, "offset": 0, "timestamp": T0, "key": "k0", "value": "0", "headers": []}
    ]


def test_partitions(penstock: Penstock, topic: str) -> None:
    for partition in ("0", "1"):
        penstock("produce", topic, "--partition", partition, stdin=f"in {partition}\n")
    assert penstock("consume", topic, "--partition", "1").out == "in 1\n"
    assert sorted(penstock("consume", topic).out.splitlines()) == ["in 0", "in 1"]
    failed = penstock("consume", topic, "--partition", "2")
    assert (failed.code, "has no partition 2: it has 2 partitions" in failed.err) == (1, True)


def test_missing_topic(penstock: Penstock) -> None:
    failed = penstock("consume", "missing")
    assert failed.code == 1
    assert "Cannot read topic 'missing'" in failed.err
    assert "topics create missing" in failed.err


def test_follow_prints_new_messages_and_ends_cleanly_on_ctrl_c(address: str, penstock: Penstock, topic: str) -> None:
    process = subprocess.Popen(
        [*PENSTOCK, "consume", topic, "--follow", "-b", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    penstock("produce", topic, stdin="first\n")
    assert process.stdout.readline() == b"first\n"
    penstock("produce", topic, stdin="second\n")
    assert process.stdout.readline() == b"second\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, b"")


def test_reader_that_leaves_early_ends_it_quietly(address: str, penstock: Penstock, topic: str) -> None:
    penstock("produce", topic, stdin="x" * 100 + "\n" + ("y" * 100 + "\n") * 20_000)
    process = subprocess.Popen(
        [*PENSTOCK, "consume", topic, "-b", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(TIMEOUT_S) == 1


@pytest.mark.parametrize(("options", "shown"), [([], rb"\x1b[31mred\r"), (["--raw"], b"\x1b[31mred\r")])
def test_terminal_gets_control_characters_only_with_raw(
    address: str, penstock: Penstock, options: list[str], shown: bytes
) -> None:
    name = f"hostile-{len(options)}"
    penstock("topics", "create", name)
    penstock("produce", name, stdin=b"\x1b[31mred\r\n")
    assert penstock("consume", name).out == "\x1b[31mred\r\n"
    assert on_a_terminal("consume", name, *options, "-b", address).startswith(shown)
