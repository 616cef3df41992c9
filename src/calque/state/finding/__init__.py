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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import Module
from torch.optim import Optimizer

from calque.state.finding.classes import meet_class, meet_enum
from calque.state.finding.containers import (
    meet_buffer,
    meet_cell,
    meet_context,
    meet_dict,
    meet_exception,
    meet_list,
    meet_local,
    meet_proxied,
    meet_referents,
    meet_set,
    meet_tuple,
    meet_weak,
    meet_weak_container,
)
from calque.state.finding.functions import (
    meet_builtin,
    meet_cache,
    meet_descriptor,
    meet_function,
    meet_getter,
    meet_method,
    meet_partial,
    meet_python_module,
)
from calque.state.finding.objects import meet_logger, meet_module, meet_object, meet_optimizer
from calque.state.finding.tensors import meet_tensor
from calque.state.lookups import GETTERS
from calque.state.matters import WRAPPERS
from calque.state.paths import Path
from calque.state.settings import has_settings
from calque.upstream import torch_c

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

__all__ = ["handler_of", "meet_logger", "meet_module"]

Handler = Callable[["Snapshot", Any, Path], None]
_OF_C = ctypes.Structure.__mro__[1]
"""The class of all values of `ctypes`."""
_WEAK_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


def handler_of(value: object) -> Handler:
    """Returns the function that visits a value."""
    own = type(value)  # `isinstance` could run user code for `__class__`
    handler = _BY_CLASS.get(own)
    if handler is None and has_settings(value):
        return meet_settings
    if handler is None:
        handler = next((h for kind, h in _BY_KIND if issubclass(own, kind)), meet_object)
    return handler


def meet_settings(snapshot: "Snapshot", value: object, path: Path) -> None:
    """Visits an object whose attributes are settings of PyTorch."""
    snapshot.libraries.hold_settings(value, path)


def _meet_nothing(snapshot: "Snapshot", value: object, path: Path) -> None:
    pass


_BY_CLASS: dict[type, Handler] = {
    dict: meet_dict,
    list: meet_list,
    tuple: meet_tuple,
    set: meet_set,
    frozenset: meet_tuple,
    types.CellType: meet_cell,
    types.FunctionType: meet_function,
    types.MethodType: meet_method,
    types.BuiltinFunctionType: meet_builtin,
    types.ModuleType: meet_python_module,
    torch.Tensor: meet_tensor,
    torch.nn.Parameter: meet_tensor,
    weakref.ProxyType: meet_proxied,
    weakref.CallableProxyType: meet_proxied,
}
_BY_KIND: list[tuple[Any, Handler]] = [
    (torch.Tensor, meet_tensor),
    (Module, lambda snapshot, value, path: snapshot.meet_module(value, path)),
    (Optimizer, meet_optimizer),
    (enum.Enum, meet_enum),
    (type, meet_class),
    (dict, meet_dict),
    (list | deque, meet_list),
    (tuple, meet_tuple),
    (set, meet_set),
    (frozenset, meet_tuple),
    (BaseException, meet_exception),
    ((bytearray, array.array, np.ndarray, _OF_C), meet_buffer),
    (types.ModuleType, meet_python_module),
    (functools.partial, meet_partial),
    (functools._lru_cache_wrapper, meet_cache),
    (
        (property, functools.cached_property, functools.partialmethod, *WRAPPERS),
        meet_descriptor,
    ),
    (weakref.ref, meet_weak),
    (_WEAK_CONTAINERS, meet_weak_container),
    (threading.local, meet_local),
    (GETTERS, meet_getter),
    (contextvars.ContextVar, meet_context),
    (torch_c.Generator, lambda snapshot, value, path: snapshot.meet_generator(value, path)),
    (np.generic | types.CodeType | types.FrameType, _meet_nothing),
    (types.MappingProxyType, meet_referents),
]
