import time

import pytest

from penstock.cli.output import duration, print_table


def test_piped_table_is_aligned_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("short", 7, None), ("日本", 1234, 0.25), ("x" * 200, None, 1234.5), ("\x1b[31m", 5, 0.0)]
    print_table(["NAME", "COUNT", "RATE"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "NAME" + " " * 196 + "  COUNT     RATE",
        "short" + " " * 195 + "      7        -",
        "日本" + " " * 196 + "   1234      0.2",  # Two cells each on a terminal.
        "x" * 200 + "      -  1,234.5",
        "\\x1b[31m" + " " * 192 + "      5      0.0",
    ]


def test_large_table_takes_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """Counted in processor time: 20,000 partitions are not unheard of, and took rich 20 seconds."""
    began_at = time.process_time()
    print_table(["TOPIC", "PARTITION"], [("orders", number) for number in range(20_000)])
    assert time.process_time() - began_at < 2
    assert len(capsys.readouterr().out.splitlines()) == 20_001


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.4, "0s"), (59.4, "59s"), (59.5, "1m 00s"), (185, "3m 05s"), (7800, "2h 10m"),
        (349_200, "4d 01h"), (86_400_000, "1,000d 00h"),
    ],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
