"""One file per API. Importing a file registers its handler (server/api.py)."""

from importlib import import_module
from pkgutil import iter_modules


def register_all() -> None:
    """Load every handler file, so that the table of APIs is complete."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
