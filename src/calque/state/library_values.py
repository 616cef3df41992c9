"""Decides which values in libraries may be state of the program."""

import contextvars
import functools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import Module

from calque.state.impure_builtins import differs
from calque.state.ownership import Owner, home_of_class, owner_of_class

_MOST_ENTRIES = 10_000
WRAPPERS = (staticmethod, classmethod)


def is_of_the_user(kind: type) -> bool:
    """Returns True if objects of an engine's class belong to the program (a scheduler, a
    distribution).

    PyTorch's internal objects must not be touched: operators look up their overloads at the first
    call, and the dispatcher then has pointers to these without owning references.
    """
    home = home_of_class(kind)
    if issubclass(kind, (np.ufunc, np.dtype)):  # they never change
        return False
    return home.startswith(("torch", "numpy")) and "._" not in home


def is_program(value: object) -> bool:
    """Returns True if a value in a library comes from the program's own code."""
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial | Module):
        return True
    return isinstance(value, torch.Tensor) or owner_of_class(type(value)) is Owner.USER


def matters_in_library(value: object) -> bool:
    """Returns True if a value in a library's module may be state of the program."""
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


def registries_in(value: object) -> Iterator[dict[Any, Any]]:
    """Yields the dicts of functions or classes that are a package's variable, or in its attributes.

    A package looks up functions in these (`ACT2FN` of transformers), and users add entries.
    """
    if isinstance(value, dict):
        if _is_registry(value):
            yield value
    elif owner_of_class(type(value)) is Owner.PACKAGE and not isinstance(value, type):
        spaces = (vars(type(value)), getattr(value, "__dict__", {}))
        held = [one for space in spaces for one in list(space.values()) if isinstance(one, dict)]
        if any(map(_is_registry, held)):
            yield from held  # users may add to an empty one


def _is_registry(value: dict[Any, Any]) -> bool:
    return len(value) < _MOST_ENTRIES and any(map(_is_code, dict.values(value)))


def _is_code(value: object) -> bool:
    if isinstance(value, tuple) and value:
        value = value[0]
    return isinstance(value, types.FunctionType | types.MethodType | functools.partial | type)


def is_random(value: object) -> bool:
    """Returns True if a value draws random numbers."""
    kinds = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
    return isinstance(value, kinds)


def functions_of(value: object) -> Iterator[types.FunctionType]:
    """Yields the functions in an entry of a class: the entry itself, or those of a descriptor."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, WRAPPERS):
        yield from functions_of(value.__func__)
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from functions_of(part)
    elif isinstance(value, functools.cached_property | functools.partialmethod):
        yield from functions_of(value.func)
