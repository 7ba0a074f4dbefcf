"""Every client reads back exactly what it wrote, and what another client wrote, in every codec."""

import pytest

from .client_kinds import CLIENT_KINDS, CONFLUENT, ClientKind
from .exchange import Exchange
from .missing_parts import skip_when_missing

KINDS = list(CLIENT_KINDS.values())
EVERY_CLIENT = pytest.mark.parametrize("client", KINDS, ids=lambda kind: kind.name)
EVERY_CODEC = pytest.mark.parametrize(
    ("client", "codec"),
    [pytest.param(kind, codec, id=f"{kind.name}-{codec}") for kind in KINDS for codec in kind.codecs],
)
EVERY_OTHER_CODEC = pytest.mark.parametrize(
    ("client", "codec"),
    [
        pytest.param(kind, codec, id=f"{kind.name}-{codec}")
        for kind in KINDS
        if kind is not CONFLUENT
        for codec in kind.codecs
    ],
)


@EVERY_CODEC
def test_reads_back_what_it_wrote(exchange: Exchange, client: ClientKind, codec: str) -> None:
    with skip_when_missing(client.name):
        exchange.assert_reads_back(client, client, codec)


@EVERY_OTHER_CODEC
def test_confluent_kafka_reads_what_it_wrote(exchange: Exchange, client: ClientKind, codec: str) -> None:
    with skip_when_missing(client.name):
        exchange.assert_reads_back(CONFLUENT, client, codec)


@EVERY_OTHER_CODEC
def test_reads_what_confluent_kafka_wrote(exchange: Exchange, client: ClientKind, codec: str) -> None:
    with skip_when_missing(client.name):
        exchange.assert_reads_back(client, CONFLUENT, codec)


@EVERY_CLIENT
def test_lists_topics_and_their_partitions(exchange: Exchange, client: ClientKind) -> None:
    with skip_when_missing(client.name):
        assert exchange.listed(client) == exchange.expected_topics()
