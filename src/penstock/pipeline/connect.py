"""A session of Spark Connect, which pipelines are described and run through.

With a master, Spark's driver is a Java process of ours that serves Spark Connect on loopback: on a port that the
operating system chooses, so that pipelines can run beside each other, and with a token that only we know. With a
remote, somebody else's server does that.
"""

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.pipeline.project import Project
from penstock.spark.launch import CONFIG, environment

# A project that writes no tables says "in-memory" and starts ten seconds of a processor's time earlier.
CATALOG_KEY = "penstock.catalog"

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_IS_CONNECT = "SPARK_CONNECT_MODE_ENABLED"  # What pyspark's functions go by, also those of the transformations.


_SERVER_CONFIG = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "localhost",
    "spark.connect.grpc.binding.port": "0",
    # As Spark itself starts such a server.
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.ui.enabled": "false",  # It listens to the whole network; --conf spark.ui.enabled=true if you want it.
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True)
class Place:
    """Where to run."""

    master: str = "local[*]"
    remote: str | None = None  # Of a Spark Connect server, such as sc://spark.example.com:15002.
    config: Mapping[str, str] = field(default_factory=dict)  # Spark's, for a start with `master`.


@contextmanager
def connected(project: Project, place: Place, config: Mapping[str, str]) -> Iterator[Any]:
    """A session with `config` set; whatever was started for it is stopped at the end. PartMissing without Java."""
    from pyspark.sql.connect.session import SparkSession

    context = None
    try:
        if place.remote is None:
            context, url = start_server({**launch_config(project, place), **place.config})
        else:
            url = place.remote
        os.environ[_IS_CONNECT] = "1"
        builder = SparkSession.builder.remote(url)
        for name, value in {**CONFIG, "spark.sql.connect.serverStacktrace.enabled": "false", **config}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
    finally:
        os.environ.pop(_IS_CONNECT, None)
        if context is not None:
            stop_server(context)


def start_server(config: Mapping[str, str]) -> tuple[Any, str]:
    """A SparkContext of this process that serves Spark Connect on loopback, and its URL. PartMissing without Java.

    Only this process and those that it starts may connect: they find the token in their environment.
    """
    from pyspark import SparkConf, SparkContext

    os.environ.update(environment())
    os.environ.setdefault(_TOKEN, uuid.uuid4().hex)
    conf = SparkConf()
    conf.setAll(list({**_SERVER_CONFIG, **config}.items()))
    context = SparkContext(conf=conf)
    service: Any = getattr(context._jvm, _SERVICE)
    return context, f"sc://localhost:{getattr(service, 'MODULE$').localPort()}"


def stop_server(context: Any) -> None:
    context.stop()
    # The Java process would end with ours. Now is better: it may hold a project's metastore.
    context._gateway.shutdown()
    context._gateway.proc.stdin.close()
    context._gateway.proc.wait()


def launch_config(project: Project, place: Place) -> dict[str, str]:
    """What can only be set when Spark starts."""
    config = {
        "spark.app.name": project.name,
        "spark.master": place.master,
        "spark.sql.warehouse.dir": (project.folder / "warehouse").as_uri(),
    }
    if place.master.startswith("local"):
        # The machine's own name may lead nowhere, as on a laptop that has changed networks.
        config |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    if project.configuration.get(CATALOG_KEY, "hive") == "hive":
        # The project's own, in a file beside it: its tables are still known in its next run.
        metastore = project.folder / "metastore"
        config |= {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={metastore};create=true",
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={project.notes / 'derby.log'}",
        }
    return config
