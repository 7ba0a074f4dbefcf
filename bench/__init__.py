"""Benchmarks: ratios within one run, never seconds against a wish."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # For what fetches Java, Kafka's jars and other parts.
