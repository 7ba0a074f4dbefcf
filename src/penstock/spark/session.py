"""A Spark session, or the environment of a Spark program, with everything set that Spark would otherwise ask for."""

import os
import sys
from pathlib import Path
from typing import Any

from penstock.local.java import find_java

# Python data sources take filters only when this is on; nothing else that we know of minds.
CONFIG = {"spark.sql.python.filterPushdown.enabled": "true"}


def environment() -> dict[str, str]:
    """Variables for Spark's programs: Java, this interpreter for the tasks, and where Spark is.

    PartMissing when there is no Java. What is set already stays.
    """
    import pyspark

    found = {
        # A link such as /usr/bin/java leads to where Java is installed.
        "JAVA_HOME": str(Path(find_java()).resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    return {name: os.environ.get(name, value) for name, value in found.items()}


def session(*, master: str = "local[*]", config: dict[str, str] | None = None) -> Any:
    """A SparkSession that knows `format("penstock")`; `config` has Spark's keys.

    A session that exists already is given back as it is, as Spark itself does.
    """
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    builder = SparkSession.builder.master(master)
    for name, value in {**CONFIG, **(config or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
