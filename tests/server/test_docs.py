"""Generated pages are in step with the code."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_the_protocol_page_lists_what_is_served(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import generate_docs

    assert generate_docs.TARGET.read_text() == generate_docs.render(), "run `make docs`"


RULES = range(1, 25)


def test_every_rule_of_reliability_has_a_test_that_names_it() -> None:
    """The rules are those of docs/reliability.md."""
    named = {
        int(number)
        for path in TESTS.rglob("test_*.py")
        for number in re.findall(r"def test_\w*?rule_(\d+)_", path.read_text())
    }
    assert named == set(RULES)
    page = (TESTS.parent / "docs" / "reliability.md").read_text()
    table = page.partition("\n## The rules\n")[2].partition("\n## ")[0]
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(RULES)
