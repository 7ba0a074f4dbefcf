"""Generated pages are in step with the code."""

from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_the_protocol_page_lists_what_is_served(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import generate_docs

    assert generate_docs.TARGET.read_text() == generate_docs.render(), "run `make docs`"
