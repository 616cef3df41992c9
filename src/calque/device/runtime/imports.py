"""Patches PyTorch modules when they are imported by other code.

Some modules take long to import, and few programs use them: from PyTorch 2.14 on,
`torch.nn.attention.flex_attention` imports sympy.
"""

import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}
_looking = threading.local()


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with the module, now if it is loaded, otherwise after its import.

    Args:
        name: the module's full name.
        act: the function, which is called once.
    """
    if (module := sys.modules.get(name)) is not None:
        act(module)
        return
    if not any(finder is _Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder)
    _waiting.setdefault(name, []).append(act)


class _Finder:
    """A finder in front of Python's finders, which adds `act` to the spec that they return."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _waiting or getattr(_looking, "name", None) == name:
            return None
        _looking.name = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            _looking.name = None
        if spec is not None and spec.loader is not None:
            _act_after(spec.loader, name)
        return spec


def _act_after(loader: object, name: str) -> None:
    execute = loader.exec_module  # pyright: ignore[reportAttributeAccessIssue]

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for act in _waiting.pop(name, ()):
            act(module)

    loader.exec_module = exec_module  # pyright: ignore[reportAttributeAccessIssue]
