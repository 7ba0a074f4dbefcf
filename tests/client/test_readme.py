"""The Python of the README does what the page says, line for line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client import Connection
from penstock.testing import EmbeddedBroker

README = (Path(__file__).parents[2] / "README.md").read_text()
FIRST, AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


class Printed(Exception):
    """Ends a loop that would wait for more messages."""


@pytest.fixture
def printed_by() -> Callable[..., bytes]:
    def run(code: str, **names: Any) -> bytes:
        def show(value: bytes) -> None:
            raise Printed(value)

        with pytest.raises(Printed) as printed:
            exec(code, {"print": show, **names})
        value: bytes = printed.value.args[0]
        return value

    return run


def test_publish_and_subscribe_take_five_lines(
    penstock_broker: EmbeddedBroker, printed_by: Callable[..., bytes]
) -> None:
    assert len([line for line in FIRST.splitlines() if line]) == 5
    assert printed_by(FIRST.replace("localhost:9092", penstock_broker.bootstrap_servers)) == b"Hello, world"


@pytest.mark.parametrize(("code", "value"), [(AT_LEAST_ONCE, b"42 paid"), (AT_MOST_ONCE, b"0.7")])
def test_a_delivery_mode_takes_three_more(
    penstock_broker: EmbeddedBroker, printed_by: Callable[..., bytes], code: str, value: bytes
) -> None:
    assert len(code.splitlines()) == 3
    with penstock.connect(penstock_broker.bootstrap_servers) as queue:
        assert printed_by(code, queue=queue) == value


def test_exactly_once_takes_three_more(connection: Connection, penstock_broker: EmbeddedBroker) -> None:
    code = EXACTLY_ONCE
    assert len(code.splitlines()) == 3
    orders, invoices = penstock_broker.create_topic(), penstock_broker.create_topic()
    code = code.replace('"orders", ', f'"{orders}", timeout=2, ').replace('"invoices"', f'"{invoices}"')
    for order in ("42", "43"):
        connection.publish(orders, order).result(60)
        exec(code, {"queue": connection})
    with connection.subscribe(invoices, group="g") as messages:
        assert [next(messages).value, next(messages).value] == [b"invoice for 42", b"invoice for 43"]
