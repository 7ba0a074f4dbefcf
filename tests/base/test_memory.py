"""Memory that is free is given back, whatever lies behind it."""

import subprocess
import sys

import pytest

SCRIPT = """
import re
from pathlib import Path

from penstock.base.memory import give_back_freed

def rss_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

del_me = bytearray(30 << 20)  # From now on glibc takes what is smaller from its heap.
del del_me
large, small = [], []
for _ in range(200):
    large.append(bytearray(b"x") * (1 << 20))
    small.append(bytearray(2000))
full = rss_mib()
large.clear()
give_back_freed()
print(full, rss_mib())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_between_pieces_that_are_in_use_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    full, left = map(int, done.stdout.split())
    assert full > 200
    assert left < 100
