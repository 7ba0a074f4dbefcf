"""One Spark session for all tests here, with Spark's own Kafka connector beside ours where it can be had."""

import os
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from compat.missing_parts import skip_when_missing
from compat.parts.cache import PartMissing, cached
from compat.parts.command import run
from compat.parts.system import from_path_or_apt
from penstock.spark import environment, session
from penstock.testing import EmbeddedBroker

POM = Path(__file__).parent / "pom.xml"
CONNECTOR = "Spark's own Kafka connector"


@cache
def connector_jars() -> tuple[Path, ...]:
    """PartMissing when Maven, or Maven Central, is out of reach."""

    def copy(target: Path) -> None:
        maven = from_path_or_apt("mvn", "maven")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        run([maven, "-q", "-B", "-f", str(POM), *goal], env={"JAVA_HOME": environment()["JAVA_HOME"]})

    return tuple(sorted(cached("spark-kafka-connector", [POM], copy).glob("*.jar")))


@pytest.fixture(scope="session")
def penstock_settings() -> dict[str, Any]:
    return {"log.retention.check.interval.ms": 86_400_000}  # Tests use old timestamps, and may take over five minutes.


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        jars = ",".join(map(str, connector_jars()))
    except PartMissing:
        jars = ""  # Who needs them says so.
    config = {
        "spark.jars": jars,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.streaming.stopTimeout": "60s",
        # Pipelines run in the same Java process, through Spark Connect.
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",
    }
    os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", uuid.uuid4().hex)
    running = session(master="local[2]", config=config)
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """For `--remote`: a pipeline takes seconds there, and a minute with a Java process of its own."""
    service = getattr(spark.sparkContext._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://localhost:{getattr(service, 'MODULE$').localPort()}"


@pytest.fixture
def kafka_connector(spark: SparkSession) -> str:
    with skip_when_missing(CONNECTOR):
        connector_jars()
    return "kafka"


@pytest.fixture
def load(spark: SparkSession, penstock_broker: EmbeddedBroker) -> Callable[..., DataFrame]:
    """`load("penstock", subscribe="orders")`; with `is_streaming`, a streaming DataFrame."""

    def load(format: str, *, is_streaming: bool = False, **options: Any) -> DataFrame:
        reader = (spark.readStream if is_streaming else spark.read).format(format)
        reader = reader.option("kafka.bootstrap.servers", penstock_broker.bootstrap_servers)
        return reader.options(**{name.replace("__", "."): value for name, value in options.items()}).load()

    return load


@pytest.fixture
def produce(penstock_broker: EmbeddedBroker) -> Callable[..., None]:
    """`produce(topic, [(partition, key, value, timestamp, headers), …], codec)`, delivered on return."""

    def produce(topic: str, records: list[tuple], codec: str = "none") -> None:
        settings = {"bootstrap.servers": penstock_broker.bootstrap_servers, "compression.type": codec, "log_level": 0}
        failures: list[Any] = []
        producer = Producer({**settings, "linger.ms": 20})
        for partition, key, value, timestamp, headers in records:
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
                timestamp=timestamp or 0,  # 0: now.
                headers=headers,
            )
        assert producer.flush(60) == 0
        assert not failures

    return produce
