"""Log events as services write them, in JSON: what is the same in all of them, what is one of a few, and what is not.

A quarter of such an event is never seen again (times, ids, numbers); the rest compresses well.
"""

import random
from itertools import count

UNIQUE = ord("#")  # A digit that is to be another in every event.

_TIME = '{"time":"2026-11-16T##:##:##.###Z"'
_FIELDS = (
    ("user", ("########",)),
    ("level", ("INFO", "INFO", "INFO", "WARN", "ERROR", "DEBUG")),
    ("service", ("checkout", "catalogue", "search", "payments", "sessions", "delivery", "prices", "mail")),
    ("trace", ("################################",)),
    ("span", ("################",)),
    ("host", ("node-######-#####",)),
    ("region", ("eu-west-1", "eu-north-1", "us-east-2", "ap-south-1")),
    ("version", ("4.1#.#",)),
    ("ip", ("10.###.###.##",)),
    ("method", ("GET", "GET", "GET", "POST", "PUT", "DELETE")),
    ("path", ("/api/v2/orders/########/items", "/api/v2/users/########", "/search?q=######", "/health")),
    ("status", ("200", "200", "200", "201", "204", "304", "404", "409", "500")),
    ("duration_ms", ("###",)),
    ("bytes", ("#####",)),
    (
        "agent",
        (
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36",
            "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)",
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:127.0) Gecko/20100101 Firefox/127.0",
            "python-requests/2.32.3",
        ),
    ),
)
_MESSAGES = (
    "request served from the cache of the node",
    "upstream answered late, the second try was taken",
    "order ######## accepted after ### ms, stock is ####",
    "session ######## renewed for user ########",
    "payment ######## refused by the bank, code ##",
    "no such item: ########, the catalogue was renewed at ##########",
)


def event(chance: random.Random, size: int) -> bytes:
    """One of `size` bytes: as many fields as fit, then messages, then spaces."""
    made = _TIME
    for number in count():
        name, values = _FIELDS[number] if number < len(_FIELDS) else (f"message_{number}", _MESSAGES)
        field = f',"{name}":"{chance.choice(values)}"'
        if len(made) + len(field) >= size:
            break
        made += field
    return made.ljust(size - 1).encode() + b"}"
