"""What a function can reach: the modules, optimizers and tensors behind its names.

Found by looking, not by running: through arguments, closures, the globals its code names, bound
methods, containers and the attributes of the user's own objects.
"""

import functools
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from calque.diagnostics.frames import is_library

_DEPTH = 4
_WIDTH = 1000


class Reach:
    """The modules, optimizers and tensors found, each once and in order.

    Attributes:
        scalars: plain values in the function's own closure and globals, with a way to read each
            again.
    """

    def __init__(self, *roots: Any) -> None:
        self.modules: dict[Module, None] = {}
        self.optimizers: dict[Optimizer, None] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.scalars: list[tuple[Any, Any, Any]] = []
        self._seen: set[int] = set()
        self._keep: list[Any] = []
        for root in roots:
            self.visit(root, _DEPTH)

    def visit(self, value: Any, depth: int) -> None:
        """Look at a value, and at what it holds as far as `depth` steps."""
        if value is None or isinstance(value, str | int | float | bytes | type):
            return
        if id(value) in self._seen or depth < 0:
            return
        self._seen.add(id(value))
        self._keep.append(value)
        if isinstance(value, torch.Tensor):
            self.tensors[id(value)] = value
        elif isinstance(value, Optimizer):
            self.optimizers[value] = None
        elif isinstance(value, Module):
            self.modules[value] = None
        elif isinstance(value, dict):
            self._visit_all(value.values(), depth)
        elif isinstance(value, list | tuple | set | frozenset):
            self._visit_all(value, depth)
        else:
            self._visit_code(value, depth)

    def _visit_all(self, values: Iterable[Any], depth: int) -> None:
        for index, item in enumerate(values):
            if index >= _WIDTH:
                return
            self.visit(item, depth - 1)

    def _visit_code(self, value: Any, depth: int) -> None:
        if isinstance(value, functools.partial):
            self._visit_all((value.func, value.args, value.keywords), depth)
        elif isinstance(value, types.MethodType):
            self._visit_all((value.__self__, value.__func__), depth)
        elif isinstance(value, types.FunctionType):
            if not is_library(value.__code__.co_filename):
                self._visit_function(value, depth)
            elif hasattr(value, "__wrapped__"):
                self._visit_all((value.__wrapped__, *_closure(value)), depth)
        elif not isinstance(value, types.ModuleType) and _is_users(type(value)):
            self._visit_all(getattr(value, "__dict__", {}).values(), depth)

    def _visit_function(self, function: types.FunctionType, depth: int) -> None:
        top = depth == _DEPTH
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # a name that is not bound yet
                continue
            if top and _is_scalar(content):
                self.scalars.append((cell, "cell_contents", content))
            self.visit(content, depth - 1)
        names = _global_names(function.__code__)
        for name in names & function.__globals__.keys():
            content = function.__globals__[name]
            if top and _is_scalar(content):
                self.scalars.append((function.__globals__, name, content))
            self.visit(content, depth - 1)


def _closure(function: types.FunctionType) -> list[Any]:
    return [c.cell_contents for c in function.__closure__ or () if _bound(c)]


def _bound(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_scalar(value: Any) -> bool:
    return type(value) in (bool, int, float, str)


def _is_users(kind: type) -> bool:
    module = __import__("sys").modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return file is None or not is_library(file)


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
