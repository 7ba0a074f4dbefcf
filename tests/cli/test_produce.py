import contextlib
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from .conftest import PENSTOCK, Result

Penstock = Callable[..., Result]


def values(penstock: Penstock, topic: str, form: str = "%k=%v") -> list[str]:
    return sorted(penstock("consume", topic, "--format", form).out.splitlines())


def test_lines_of_stdin(penstock: Penstock, topic: str) -> None:
    sent = penstock("produce", topic, stdin="one\n\nlast, without an end of line")
    assert sent.code == 0
    assert sent.out == ""
    assert sent.err.startswith(f"Sent 3 messages to {topic} in ")
    assert values(penstock, topic) == ["null=", "null=last, without an end of line", "null=one"]


def test_keys_headers_and_nulls(penstock: Penstock, topic: str) -> None:
    sent = penstock(
        "produce", topic, "--key-separator", "=>", "--null-marker", "NULL", "--header", "a=1", "--header", "b=x=y",
        "--codec", "zstd", stdin="k=>v=>w\nNULL=>v\nk=>NULL\n=>",
    )  # fmt: skip
    assert sent.code == 0, sent.err
    found = penstock("consume", topic, "--json").json_lines
    assert sorted((str(m["key"]), str(m["value"])) for m in found) == [
        ("", ""),
        ("None", "v"),
        ("k", "None"),
        ("k", "v=>w"),
    ]
    assert all(m["headers"] == [{"key": "a", "value": "1"}, {"key": "b", "value": "x=y"}] for m in found)


def test_files_and_a_fixed_key_and_partition(penstock: Penstock, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3\n")
    sent = penstock("produce", topic, tmp_path / "a", "-", tmp_path / "b", "--key", "k", "-p", "1", stdin="piped\n")
    assert sent.code == 0, sent.err
    assert penstock("consume", topic, "--format", "%p %k %v").out == "1 k 1\n1 k 2\n1 k piped\n1 k 3\n"


def test_whole_files(penstock: Penstock, topic: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    (tmp_path / "binary").write_bytes(content)
    assert penstock("produce", topic, tmp_path / "binary", "--format", "raw").code == 0
    copied = penstock("consume", topic, "--raw").out.encode("utf-8", "surrogateescape")
    assert copied == content + b"\n"


def test_a_copy_through_json_is_exact(penstock: Penstock, topic: str) -> None:
    penstock("produce", topic, "--format", "json", stdin=(
        '{"key": "k", "value": "text \\n \\u001b \u00fc", "partition": 1, "timestamp": 1700000000000}\n'
        '{"key_base64": "/wA=", "value_base64": "/w==", "headers": [{"key": "h", "value_base64": "/w=="}]}\n'
        '{"value": null, "headers": {"n": null}}\n'
    ))  # fmt: skip
    original = penstock("consume", topic, "--json")
    assert penstock("topics", "create", f"{topic}-2", "--partitions", "2").code == 0
    copied = penstock("produce", f"{topic}-2", "--format", "json", "--json", stdin=original.out)
    assert (copied.code, copied.json["sent"]) == (0, 3)
    copy = penstock("consume", f"{topic}-2", "--json").out.replace(f"{topic}-2", topic)
    assert sorted(copy.splitlines()) == sorted(original.out.splitlines())
    assert '"timestamp": 1700000000000, "key": "k"' in copy


def test_copy_to_fewer_partitions_needs_repartition(penstock: Penstock, topic: str) -> None:
    line = '{"value": "v", "partition": 5}\n'
    failed = penstock("produce", topic, "--format", "json", stdin=line)
    assert failed.code == 1
    assert "1 message could not be sent" in failed.err
    assert "--repartition" in failed.err
    assert penstock("produce", topic, "--format", "json", "--repartition", stdin=line).code == 0


def test_bad_input_is_named_by_file_and_line(penstock: Penstock, topic: str) -> None:
    failed = penstock("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\nc\nd:4\n")
    assert failed.code == 1
    assert "line 3 of stdin: there is no ':' between key and value" in failed.err
    assert "2 messages before it were sent" in failed.err
    assert values(penstock, topic) == ["a=1", "b=2"]
    failed = penstock("produce", topic, "--format", "json", "--json", stdin='{"value": "ok"}\n[]\n')
    assert failed.error["code"] == "BAD_INPUT"
    assert failed.json["sent"] == 1


def test_missing_file_sends_nothing(penstock: Penstock, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    failed = penstock("produce", topic, tmp_path / "a", tmp_path / "missing")
    assert (failed.code, "No such file" in failed.err) == (1, True)
    assert values(penstock, topic) == []


def test_refused_messages_are_counted_with_the_reason(penstock: Penstock, topic: str) -> None:
    penstock("topics", "alter", topic, "--config", "max.message.bytes=1000")
    failed = penstock("produce", topic, "--rate", "20", stdin="small\n" + "x" * 5000 + "\nalso small\n")
    assert failed.code == 1
    assert "Sent 2 messages" in failed.err
    assert "1 message could not be sent" in failed.err
    assert "MSG_SIZE_TOO_LARGE" in failed.err
    assert f"topics alter {topic} --config max.message.bytes=N" in failed.err


def test_rate_is_kept(penstock: Penstock, topic: str) -> None:
    started_at = time.monotonic()
    sent = penstock("produce", topic, "--rate", "40", "--json", stdin="x\n" * 20).json
    assert sent["sent"] == 20
    assert 0.45 < sent["seconds"] < time.monotonic() - started_at


def test_large_input_takes_little_memory(address: str, topic: str, tmp_path: Path) -> None:
    """150 MB in lines of 1 KB; the limit is the interpreter, the client's queue, and as much again in requests."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(150):
            file.write((b"x" * 1023 + b"\n") * 1000)
    process = subprocess.Popen(
        [*PENSTOCK, "produce", topic, str(path), "--acks", "1", "-b", address], stderr=subprocess.DEVNULL
    )
    peak_kb = 0
    while process.poll() is None:
        # Not ru_maxrss: that of a child starts at what its parent had before the exec.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            peak_kb = max(peak_kb, int(found[1]) if found else 0)
        time.sleep(0.01)
    assert process.returncode == 0
    assert 0 < peak_kb < 128 * 1024


def test_first_message_creates_its_topic(penstock: Penstock) -> None:
    assert penstock("produce", "made-on-demand", stdin="x\n").code == 0
    assert penstock("consume", "made-on-demand").out == "x\n"


def test_topic_that_cannot_be_is_explained(penstock: Penstock) -> None:
    failed = penstock("produce", "bad/name", stdin="x\n")
    assert failed.code == 1
    assert "Cannot send to topic 'bad/name'" in failed.err
