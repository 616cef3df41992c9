"""Let timm be imported where torchvision has no build for this PyTorch.

timm's layers name one class of torchvision, and its data sets a few more; its models use none.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "torchvision"


class _Named(type):
    """A class whose unknown attributes are their own names, as of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Stubs(MetaPathFinder, Loader):
    """Serves any module of torchvision, with any class in it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        mine = fullname.partition(".")[0] == _NAME
        return ModuleSpec(fullname, self, is_package=True) if mine else None

    def exec_module(self, module: ModuleType) -> None:
        def named(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Named(name, (), {})

        module.__dict__["__getattr__"] = named


@contextmanager
def torchvision_stubbed() -> Iterator[None]:
    """Modules of torchvision can be imported within; nothing of them stays behind."""
    if importlib.util.find_spec(_NAME) is not None:
        yield
        return
    finder = _Stubs()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == _NAME]:
            del sys.modules[name]
