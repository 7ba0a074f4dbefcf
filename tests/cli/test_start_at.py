import pytest

from penstock.cli.start_at import Kind, StartAt, parse_start, start_offset

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", StartAt(Kind.EARLIEST)),
        ("latest", StartAt(Kind.LATEST)),
        ("0", StartAt(Kind.OFFSET, 0)),
        ("42", StartAt(Kind.OFFSET, 42)),
        ("-10", StartAt(Kind.LAST, 10)),
        ("1700000000000", StartAt(Kind.TIME, 1_700_000_000_000)),
        ("1h", StartAt(Kind.TIME, NOW_MS - 3_600_000)),
        ("90s", StartAt(Kind.TIME, NOW_MS - 90_000)),
        ("500ms", StartAt(Kind.TIME, NOW_MS - 500)),
        ("2w", StartAt(Kind.TIME, NOW_MS - 14 * 86_400_000)),
        ("2023-11-14T22:13:20Z", StartAt(Kind.TIME, 1_700_000_000_000)),
        ("2023-11-14 22:13:20.500+00:00", StartAt(Kind.TIME, 1_700_000_000_500)),
    ],
)
def test_every_form_is_understood(text: str, expected: StartAt) -> None:
    assert parse_start(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "1x", "--5", "1.5h", "٣"])
def test_anything_else_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="give earliest, latest"):
        parse_start(text, NOW_MS)


@pytest.mark.parametrize(
    ("start", "at_time", "expected"),
    [
        (StartAt(Kind.EARLIEST), None, 10),
        (StartAt(Kind.LATEST), None, 50),
        (StartAt(Kind.OFFSET, 20), None, 20),
        (StartAt(Kind.OFFSET, 5), None, 10),
        (StartAt(Kind.OFFSET, 99), None, 50),
        (StartAt(Kind.LAST, 3), None, 47),
        (StartAt(Kind.LAST, 99), None, 10),
        (StartAt(Kind.TIME, 1), 30, 30),
        (StartAt(Kind.TIME, 1), -1, 50),  # No message is that new.
    ],
)
def test_offset_in_a_partition_that_holds_10_to_50(start: StartAt, at_time: int | None, expected: int) -> None:
    assert start_offset(start, 10, 50, at_time) == expected
