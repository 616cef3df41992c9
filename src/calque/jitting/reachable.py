"""Finds the modules, optimizers and tensors that a function can reach through its names.

They are found without running the function: through arguments, closures, the globals that its code
names, bound methods, containers and the attributes of the user's own objects.
"""

import contextlib
import enum
import functools
import sys
import types
import weakref
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from calque.errors.frames import is_library
from calque.state.contents import elements_of, items_of
from calque.state.names import names_of
from calque.state.rows import slots_of
from calque.state.values import instance_dict
from calque.state.weak import proxied

_DEPTH = 12
_WIDTH = 1000
_MOST = 100_000
_NAMESPACES = frozenset(("globals", "vars", "locals", "eval", "exec", "__globals__", "f_globals"))
_PARTS = ("_parameters", "_buffers", "_modules")
_OPAQUE = (str, int, float, complex, bytes, torch.dtype, torch.device, enum.Enum)


class Reachable:
    """The objects found, each once and in order.

    Attributes:
        modules: every module, with its path.
        optimizers: every optimizer, with its path.
        tensors: every tensor, by id.
        names: the name of each tensor in the user's program, by id.
    """

    def __init__(self, *roots: Any) -> None:
        self.modules: dict[Module, str] = {}
        self.optimizers: dict[Optimizer, str] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.names: dict[int, str] = {}
        self._objects: list[tuple[Any, str, int]] = []
        self._used: set[str] = set()
        self._seen: set[int] = set()
        self._keep: list[Any] = []
        for root in roots:
            self.add(root, "")

    def add(self, root: object, path: str) -> None:
        """Search one more value."""
        self.visit(root, _DEPTH, path)
        self._look_into_objects()

    def visit(self, value: Any, depth: int, path: str) -> None:
        """Visit a value and its contents, up to `depth` levels."""
        kind = type(value)  # `isinstance` could run user code for `__class__`
        if value is None or depth < 0 or issubclass(kind, _OPAQUE) or id(value) in self._seen:
            return
        if len(self._keep) > _MOST:
            return
        self._seen.add(id(value))
        self._keep.append(value)
        if kind in weakref.ProxyTypes:
            self.visit(proxied(value), depth, path)
        elif issubclass(kind, torch.Tensor):
            self.tensors[id(value)] = value
            self.names[id(value)] = path
        elif issubclass(kind, Optimizer):
            self._visit_optimizer(value, path)
        elif issubclass(kind, Module):
            self._visit_module(value, depth, path)
        elif issubclass(kind, dict):
            for key, item in items_of(value)[:_WIDTH]:
                self.visit(item, depth - 1, f"{path}[{key!r}]")
        elif issubclass(kind, list | tuple | set | frozenset):
            for index, item in enumerate(elements_of(value)[:_WIDTH]):
                self.visit(item, depth - 1, f"{path}[{index}]")
        else:
            self._visit_code(value, depth, path)

    def _visit_module(self, module: Module, depth: int, path: str) -> None:
        self.modules[module] = path
        attributes = vars(module)
        parts = [attributes[name] for name in _PARTS]
        inner = f"{path}." if path else ""
        for part in parts:
            for name, item in part.items():
                self.visit(item, _DEPTH, f"{inner}{name}")
        for name, item in attributes.items():
            if name.endswith("_hooks") or not (name.startswith("_") and _is_torchs(name)):
                self.visit(item, depth - 1, f"{inner}{name}")
        self._used.add("forward")
        self.visit(type(module), depth - 1, type(module).__name__)

    def _visit_optimizer(self, optimizer: Optimizer, path: str) -> None:
        self.optimizers[optimizer] = path
        for index, group in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                self.visit(parameter, 1, f"{path}.param_groups[{index}]['params'][{number}]")

    def _visit_code(self, value: Any, depth: int, path: str) -> None:
        kind = type(value)
        if issubclass(kind, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.visit(part, depth - 1, path)
        elif issubclass(kind, types.MethodType):
            self.visit(value.__func__, depth - 1, path)
            self.visit(value.__self__, depth, "self")
        elif issubclass(kind, types.FunctionType):
            if not is_library(value.__code__.co_filename):
                self._visit_function(value, depth)
            elif hasattr(value, "__wrapped__"):
                self.visit(value.__wrapped__, depth - 1, path)
                for cell in value.__closure__ or ():
                    self._visit_cell(cell, path, depth)
        elif issubclass(kind, staticmethod | classmethod):
            self.visit(value.__func__, depth, path)
        elif issubclass(kind, property):
            self.visit(value.fget, depth, path)
        elif issubclass(kind, type):
            for base in value.__mro__:
                if _is_users(base):
                    self._objects.append((vars(base), base.__name__, depth))
        elif not issubclass(kind, types.ModuleType) and _is_users(kind):
            self._used.add("__call__")
            self.visit(kind, depth - 1, kind.__name__)
            held = instance_dict(value)
            if held is not None:
                self._objects.append((held, path, depth))
            for name, read in slots_of(kind).items():
                with contextlib.suppress(AttributeError):  # the slot is empty
                    self.visit(read(value), depth - 1, f"{path}.{name}")

    def _visit_function(self, function: types.FunctionType, depth: int) -> None:
        code = function.__code__
        used = _names(code)
        self._used |= used
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._visit_cell(cell, name, depth)
        known = function.__globals__
        for name in sorted(_globals(code) & known.keys()):
            if not issubclass(type(known[name]), types.ModuleType):
                self.visit(known[name], depth - 1, name)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(default, depth - 1, function.__name__)

    def _visit_cell(self, cell: types.CellType, path: str, depth: int) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # the cell is empty
            return
        self.visit(value, depth - 1, path)

    def _look_into_objects(self) -> None:
        """Visit the attributes of plain objects whose names occur in reachable code.

        The function cannot reach other objects (a step counter of the training loop).
        """
        looked: set[tuple[int, str]] = set()
        while True:
            fresh = [
                (item, name)
                for item in list(self._objects)
                for name in sorted(self._used & item[0].keys())
                if (id(item[0]), name) not in looked
            ]
            if not fresh:
                break
            for (attributes, path, depth), name in fresh:
                looked.add((id(attributes), name))
                if name in attributes:  # no other thread has removed it meanwhile
                    self.visit(attributes[name], depth - 1, f"{path}.{name}")


def _is_torchs(name: str) -> bool:
    return name in _MODULE_ATTRIBUTES


_MODULE_ATTRIBUTES = frozenset(vars(Module()))


def _is_users(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" if file is None else not is_library(file)


def _globals(code: types.CodeType) -> set[str]:
    """Returns the names of the global variables that code reaches, and of others if it may look
    them up by computed names.
    """
    names = names_of(code)
    used = set(names.globals) if _NAMESPACES.isdisjoint(names.words) else _names(code)
    return used.union(*map(_globals, names.nested))


def _names(code: types.CodeType) -> set[str]:
    """Returns the names of globals and attributes in code, and the words in its constants."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return names
