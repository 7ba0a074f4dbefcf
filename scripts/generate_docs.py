"""Write docs/protocol.md from the table of handlers: `make docs`. A test fails when it is out of step."""

import inspect
from pathlib import Path

from penstock.server.api import APIS
from penstock.server.handlers import register_all

TARGET = Path(__file__).parent.parent / "docs/protocol.md"

HEADER = """# Protocol support

Generated from the table of handlers (`make docs`). A version that is advertised but not served is refused; it is there
because clients draw conclusions from seeing it.

| key | API | advertised | served | what it does |
|---|---|---|---|---|
"""


def main() -> None:
    TARGET.write_text(render())


def render() -> str:
    register_all()
    rows = []
    for key, api in sorted(APIS.items()):
        module = inspect.getmodule(api.handler or api.raw_handler)
        assert module is not None
        assert module.__doc__ is not None
        summary = module.__doc__.splitlines()[0].partition(": ")[2]
        name = "".join(part.capitalize() for part in api.key.name.split("_"))
        last = api.versions.stop - 1
        advertised = _range(api.advertised_min, last) if api.is_advertised else "no"
        served = _range(api.versions.start, last)
        rows.append(f"| {key} | {name} | {advertised} | {served} | {summary[:1].upper()}{summary[1:]} |\n")
    return HEADER + "".join(rows)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


if __name__ == "__main__":
    main()
