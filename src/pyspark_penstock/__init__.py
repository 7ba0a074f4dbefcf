"""What makes `format("penstock")` known: Spark imports every package whose name begins with `pyspark_`."""

import warnings

__all__ = ["DefaultSource"]

try:
    from penstock.spark.source import PenstockDataSource as DefaultSource
except ImportError as error:
    # Spark looks for all Python data sources at once: one that cannot be imported would take the others with it.
    warnings.warn(f'format("penstock") is not there ({error}): pip install "penstock[spark]"', stacklevel=1)
    __all__ = []
