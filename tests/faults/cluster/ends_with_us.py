"""Processes that must not outlive the tests, not even when a client library aborts them."""

import shutil

ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
