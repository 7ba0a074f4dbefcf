"""Benchmarks: ratios within one run, never seconds against a wish."""
