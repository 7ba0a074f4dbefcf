"""CRC-32C, in hardware.

The package `crc32c` asks importlib.metadata for its own version when it is imported, which costs as much as importing
asyncio: a fifth of a broker's start. Its extension module is loaded without the package around it.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import cast

Checksum = Callable[[bytes | bytearray | memoryview], int]


def _load() -> Checksum:
    package = find_spec("crc32c")
    assert package is not None, "crc32c is one of Penstock's dependencies"
    extension = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if extension is None or extension.loader is None:  # A release that is laid out in another way.
        from crc32c import crc32c

        return cast(Checksum, crc32c)
    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    return cast(Checksum, module.crc32c)


crc32c = _load()
