"""Names from when `calque.trace` was a package, which still work as attributes and in imports."""

import sys
from types import ModuleType
from typing import Any

from calque import tracing
from calque.tracing.core import submodule_imports

_FORMER = "calque.trace"


class _Former(ModuleType):
    """The module that imports of `calque.trace` find; it imports a name when it is first used."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in tracing.__all__:
            return getattr(tracing, name)
        raise AttributeError(f"module {_FORMER!r} has no attribute {name!r}")


def install() -> None:
    """Make imports of `calque.trace`, and of modules in it, find those of `calque.tracing`."""
    sys.modules[_FORMER] = _Former(_FORMER, __doc__)
    submodule_imports.install(_FORMER, tracing.__name__, None)


def __getattr__(name: str) -> Any:
    """Returns the function `calque.trace`, which has the names of `calque.tracing`, too."""
    if name != "trace":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = tracing.trace
    vars(function).update({each: getattr(tracing, each) for each in tracing.__all__})
    return function
