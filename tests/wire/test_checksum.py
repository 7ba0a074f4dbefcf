"""The checksum is the package's own, found without importing the package."""

import subprocess
import sys

import crc32c as package
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.checksum import crc32c


@given(st.binary())
def test_it_is_the_checksum_of_the_package(data: bytes) -> None:
    assert crc32c(data) == crc32c(memoryview(data)) == package.crc32c(data)


def test_a_known_answer() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_start_does_not_pay_for_what_only_the_package_needs() -> None:
    program = "import sys, penstock.server.broker; print({'crc32c', 'importlib.metadata'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
