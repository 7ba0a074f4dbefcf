"""`make demo` in its short form: everything starts, results come, nothing is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)  # Half a minute on a quiet machine.
def test_the_demo_shows_results_and_leaves_nothing_behind(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py", "--seconds", "1"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The last table of the flows, and one of the counts.
    assert "counts_and_alerts" in done.stdout
    assert "WINDOW" in done.stdout
    assert "not JSON: " in done.stdout
    assert not list(tmp_path.glob("penstock-demo-*"))
