"""Programs from the machine's PATH, installed through apt where that is possible and nothing else offers them."""

import os
import shutil
from functools import cache

from .cache import PartMissing
from .command import run


@cache
def from_path_or_apt(program: str, package: str) -> str:
    found = shutil.which(program)
    if found:
        return found
    hint = f"{program} is not installed (Debian, Ubuntu: apt-get install {package}; macOS: brew install {package})"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise PartMissing(hint)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "update"], env=quiet)
        run(["apt-get", "install", "--yes", "--no-install-recommends", package], env=quiet)
    except PartMissing as error:
        raise PartMissing(f"{hint}; apt-get said: {error}") from error
    found = shutil.which(program)
    if not found:
        raise PartMissing(f"{hint}; apt-get installed {package}, but there is no {program} on PATH")
    return found
