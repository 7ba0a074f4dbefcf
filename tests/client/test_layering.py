"""The client meets the broker on the wire only."""

import subprocess
import sys


def test_importing_the_client_imports_nothing_of_the_broker() -> None:
    code = (
        "import sys, penstock; assert 'confluent_kafka' not in sys.modules; penstock.connect\n"
        "print(*sorted(n for n in sys.modules if n.startswith('penstock.') and not n.startswith('penstock.client')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "\n"
