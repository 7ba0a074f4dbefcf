"""What makes `format("penstock-lake")` known: as `pyspark_penstock` does, one format to a package."""

import warnings

__all__ = ["DefaultSource"]

try:
    from penstock.spark.lake_source import LakeDataSource as DefaultSource
except ImportError as error:
    warnings.warn(f'format("penstock-lake") is not there ({error}): pip install "penstock[spark]"', stacklevel=1)
    __all__ = []
