"""ZooKeeper's server, fetched once from Maven Central: six jars, known by their checksums, 4 MB.

Only what a server with plain sockets loads: no netty, no jetty, no command line.
"""

import hashlib
import os
import shutil
import ssl
import tempfile
from pathlib import Path
from urllib.request import urlopen

from penstock.local.java import PartMissing

VERSION = "3.9.6"
REPOSITORY = "https://repo.maven.apache.org/maven2"  # PENSTOCK_MAVEN_REPOSITORY names a mirror.
FETCH_S_MAX = 60

JARS = {
    "org/apache/zookeeper/zookeeper/3.9.6/zookeeper-3.9.6.jar": (
        "09bdf93be7c0b5b7cd9fe51bee6abe424796cd5aaf75cf0c10bbd6f1273562ee"
    ),
    "org/apache/zookeeper/zookeeper-jute/3.9.6/zookeeper-jute-3.9.6.jar": (
        "74f9cb1e4ba899ecc4b816201b4afd1c63c256705bd9176393fac4071597c75f"
    ),
    "io/dropwizard/metrics/metrics-core/4.1.12.1/metrics-core-4.1.12.1.jar": (
        "cec34936faa625039f4e46123eccaa10a9eb9d9a40c6075830cd81330e259cf9"
    ),
    "org/slf4j/slf4j-api/1.7.36/slf4j-api-1.7.36.jar": (
        "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0"
    ),
    "org/slf4j/slf4j-simple/1.7.36/slf4j-simple-1.7.36.jar": (
        "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f"
    ),
    "org/xerial/snappy/snappy-java/1.1.10.7/snappy-java-1.1.10.7.jar": (
        "4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36"
    ),
}


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def zookeeper_jars(cache: Path | None = None) -> Path:
    """The folder with the jars, fetched if it is not there yet; PartMissing when they cannot be had."""
    target = (cache or default_cache()) / f"zookeeper-{VERSION}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix="zookeeper-", dir=target.parent))
        try:
            for path, checksum in JARS.items():
                (unfinished / path.rpartition("/")[2]).write_bytes(_fetch(path, checksum))
            # Only a whole folder gets the name. Somebody else may have been faster, with the same bytes.
            if not target.exists():
                unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _fetch(path: str, checksum: str) -> bytes:
    url = f"{os.environ.get('PENSTOCK_MAVEN_REPOSITORY', REPOSITORY)}/{path}"
    try:
        with urlopen(url, timeout=FETCH_S_MAX, context=ssl.create_default_context()) as response:
            content: bytes = response.read()
    except OSError as error:
        raise PartMissing(f"ZooKeeper cannot be fetched from {url}: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        raise PartMissing(f"{url} is not what it should be: SHA-256 {found} instead of {checksum}")
    return content
