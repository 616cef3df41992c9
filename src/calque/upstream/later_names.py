"""Packages whose names are imported when they are first used, as PEP 562 allows.

`import calque` then loads what a device needs, and not each way of tracing a program.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def later(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package: it imports a name's module, and keeps the value.

    Args:
        package: the name of the package.
        homes: for each name, the module that defines it, relative to the package (".api"); for a
            subpackage or module, its own name (".api" for "api").
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(package + homes[name])
        if homes[name] == f".{name}":
            return home
        found = getattr(home, name)
        setattr(sys.modules[package], name, found)
        return found

    find.__name__ = "__getattr__"
    return find
