import subprocess
import sys
from pathlib import Path

import pytest
from bench.process import prompt_timers

SLACK = Path("/proc/self/timerslack_ns")


@pytest.mark.skipif(not SLACK.exists(), reason="NOT TESTED: this system does not say how late its timers are")
def test_who_sends_at_a_rate_is_woken_in_time_and_nobody_else() -> None:
    def of_a_child() -> int:
        show = f"print(open({str(SLACK)!r}).read())"
        return int(subprocess.run([sys.executable, "-c", show], capture_output=True, check=True).stdout)

    before = int(SLACK.read_text())
    assert of_a_child() == before
    with prompt_timers():
        assert of_a_child() == 1
    assert of_a_child() == before
