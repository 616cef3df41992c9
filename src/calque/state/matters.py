"""Which of the things that libraries hold may be state of the program's."""

import contextvars
import functools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import Module

from calque.state.differing import differs
from calque.state.whose import Owner, home_of_class, owner_of_class

_MOST_ENTRIES = 10_000
WRAPPERS = (staticmethod, classmethod)


def is_of_the_user(kind: type) -> bool:
    """Returns True if objects of an engine's class are the program's own (a scheduler, a
    distribution).

    What PyTorch keeps for itself stays untouched: its operators look their overloads up when they
    are first called, and its dispatcher then holds pointers to these that own no reference.
    """
    home = home_of_class(kind)
    return home.startswith(("torch", "numpy")) and "._" not in home


def is_program(value: Any) -> bool:
    """Returns True if something that a library holds is of the program's own code."""
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial | Module):
        return True
    return isinstance(value, torch.Tensor) or owner_of_class(type(value)) is Owner.USER


def matters_in_library(value: Any) -> bool:
    """Returns True if something that a library's module holds may be state of the program's."""
    if isinstance(value, types.BuiltinFunctionType):
        return differs(value) or not isinstance(value.__self__, types.ModuleType | type | None)
    if isinstance(value, types.ModuleType):
        return True
    if isinstance(value, types.MethodType):
        return is_random(value.__self__)
    home = home_of_class(type(value))
    if isinstance(value, list) and len(value) < 1000:
        return True
    if home == "os" or isinstance(value, types.FunctionType | functools._lru_cache_wrapper):
        return True
    return is_random(value) or isinstance(value, contextvars.ContextVar)


def registries_in(value: Any) -> Iterator[dict[Any, Any]]:
    """Yields the dicts of functions or classes that a package's variable is, or keeps in its
    attributes.

    By these a package finds what to call (`ACT2FN` of transformers), and users add to them.
    """
    if isinstance(value, dict):
        if _is_registry(value):
            yield value
    elif owner_of_class(type(value)) is Owner.PACKAGE and not isinstance(value, type):
        spaces = (vars(type(value)), getattr(value, "__dict__", {}))
        held = [one for space in spaces for one in list(space.values()) if isinstance(one, dict)]
        if any(map(_is_registry, held)):
            yield from held  # what users add may go into one that is empty


def _is_registry(value: dict[Any, Any]) -> bool:
    return len(value) < _MOST_ENTRIES and any(map(_is_code, dict.values(value)))


def _is_code(value: Any) -> bool:
    if isinstance(value, tuple) and value:
        value = value[0]
    return isinstance(value, types.FunctionType | types.MethodType | functools.partial | type)


def is_random(value: Any) -> bool:
    """Returns True if something draws random numbers."""
    kinds = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
    return isinstance(value, kinds)


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Yields the functions in an entry of a class: itself, or those of a descriptor."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, WRAPPERS):
        yield from functions_of(value.__func__)
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from functions_of(part)
    elif isinstance(value, functools.cached_property | functools.partialmethod):
        yield from functions_of(value.func)
