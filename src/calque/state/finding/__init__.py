"""Handlers that visit each kind of value: what to record, and what the value refers to.

A handler is called once for each object, with the snapshot, the object, and its path in the user's
program.
"""

import array
import contextvars
import ctypes
import enum
import functools
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import Module
from torch.optim import Optimizer

from calque.state.finding.classes import visit_class, visit_enum
from calque.state.finding.containers import (
    visit_alias,
    visit_buffer,
    visit_cell,
    visit_context,
    visit_dict,
    visit_exception,
    visit_list,
    visit_local,
    visit_proxied,
    visit_referents,
    visit_set,
    visit_tuple,
    visit_weak,
    visit_weak_container,
)
from calque.state.finding.functions import (
    visit_builtin,
    visit_cache,
    visit_descriptor,
    visit_function,
    visit_getter,
    visit_method,
    visit_partial,
    visit_python_module,
)
from calque.state.finding.objects import visit_logger, visit_module, visit_object, visit_optimizer
from calque.state.finding.tensors import visit_tensor
from calque.state.library_values import WRAPPERS
from calque.state.lookups import GETTERS
from calque.state.paths import Path
from calque.state.settings import has_settings
from calque.upstream import torch_c

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

__all__ = ["handler_of", "visit_logger", "visit_module"]

Handler = Callable[["Snapshot", Any, Path], None]
_ABC_CACHES = type(vars(Mapping)["_abc_impl"])
"""The class of an abstract class's caches for `isinstance`. What is registered with the abstract
class is recorded with the class itself.
"""
_OF_C = ctypes.Structure.__mro__[1]
"""The class of all values of `ctypes`."""
_POINTERS = frozenset("OzZP")
"""Codes of simple types whose bytes are addresses."""
_WEAK_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


def _is_of_numbers(kind: Any) -> bool:
    """Returns True if values of a `ctypes` type contain no pointers."""
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        return all(_is_of_numbers(field[1]) for field in getattr(kind, "_fields_", ()))
    inner = getattr(kind, "_type_", None)
    if isinstance(inner, str):
        return inner not in _POINTERS
    return issubclass(kind, ctypes.Array) and _is_of_numbers(inner)


def handler_of(value: object) -> Handler:
    """Returns the function that visits a value."""
    own = type(value)  # `isinstance` could run user code for `__class__`
    handler = _BY_CLASS.get(own)
    if handler is None and has_settings(value):
        return visit_settings
    if handler is None and issubclass(own, _OF_C) and not _is_of_numbers(own):
        return visit_object  # whose bytes are addresses, which must not be written back
    if handler is None:
        handler = next((h for kind, h in _BY_KIND if issubclass(own, kind)), visit_object)
    return handler


def visit_settings(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits an object whose attributes are settings of PyTorch."""
    snapshot.libraries.hold_settings(value, path)


def _ignore(snapshot: "Snapshot", value: object, path: Path) -> None:
    pass


_BY_CLASS: dict[type, Handler] = {
    dict: visit_dict,
    list: visit_list,
    tuple: visit_tuple,
    set: visit_set,
    frozenset: visit_tuple,
    types.CellType: visit_cell,
    types.FunctionType: visit_function,
    types.MethodType: visit_method,
    types.BuiltinFunctionType: visit_builtin,
    types.ModuleType: visit_python_module,
    torch.Tensor: visit_tensor,
    torch.nn.Parameter: visit_tensor,
    weakref.ProxyType: visit_proxied,
    weakref.CallableProxyType: visit_proxied,
    _ABC_CACHES: _ignore,
}
_BY_KIND: list[tuple[Any, Handler]] = [
    ((types.GenericAlias, types.UnionType), visit_alias),
    (torch.Tensor, visit_tensor),
    (Module, lambda snapshot, value, path: snapshot.visit_module(value, path)),
    (Optimizer, visit_optimizer),
    (enum.Enum, visit_enum),
    (type, visit_class),
    (dict, visit_dict),
    (list | deque, visit_list),
    (tuple, visit_tuple),
    (set, visit_set),
    (frozenset, visit_tuple),
    (BaseException, visit_exception),
    ((bytearray, array.array, np.ndarray, _OF_C), visit_buffer),
    (types.ModuleType, visit_python_module),
    (functools.partial, visit_partial),
    (functools._lru_cache_wrapper, visit_cache),
    (
        (property, functools.cached_property, functools.partialmethod, *WRAPPERS),
        visit_descriptor,
    ),
    (weakref.ref, visit_weak),
    (_WEAK_CONTAINERS, visit_weak_container),
    (threading.local, visit_local),
    (GETTERS, visit_getter),
    (contextvars.ContextVar, visit_context),
    (torch_c.Generator, lambda snapshot, value, path: snapshot.visit_generator(value, path)),
    (np.generic | types.CodeType | types.FrameType, _ignore),
    (types.MappingProxyType, visit_referents),
]
