"""Describes what determines the results of a run, in text that is stable across processes.

The user's functions and classes are identified by their code and by what it reads: constants,
defaults, enclosing variables, global variables, attributes. Those of libraries are identified by
their names and closures. The text does not depend on addresses, on Python's hashes, or on the order
of sets.
"""

import dataclasses
import functools
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.errors.frames import is_library
from calque.federated.learning.code import Names, digest_of_code, names_of_code

_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, torch.dtype, np.dtype, Enum)
_SETTINGS = (
    *(*_PLAIN, list, tuple, dict, set, frozenset),
    *(functools.partial, FunctionType, MethodType),
)
_LONGEST = 200
"""The maximum length of a part of a description; longer parts are replaced by a digest."""

_FORWARD = frozenset(("forward",))
_OF_CALLS = frozenset(("__call__", "initial", "init", "update", "step"))
"""Methods that training loops, or calque, call on an object that the user passes."""


def described(value: object) -> str:
    """Describes a setting: numbers, arrays, modules, optimizers, functions and what they read.

    >>> described({"rate": 0.1}), described([1, torch.float32])
    ('{rate: 0.1}', '[1, torch.float32]')
    """
    return _Description().of(value, frozenset())


def described_module(module: torch.nn.Module) -> str:
    """Describes a trained module: its layers and code, without parameters and buffers.

    >>> described_module(torch.nn.Linear(2, 3))
    'Linear(in_features=2, out_features=3, bias=True)'
    """
    return _Description().of_module(module, arrays=False)


class _Description:
    """Describes values that may refer to each other."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}
        self._kept: list[Any] = []

    def of(self, value: Any, names: Names) -> str:
        """Describes a value.

        Args:
            names: the names of the attributes that code reads, if it is a user's object.
        """
        if isinstance(value, _PLAIN):
            return _shortened(repr(value))
        key = id(value), names
        if key not in self._known:
            self._kept.append(value)  # so that its address is not reused
            self._known[key] = type(value).__name__  # for references to itself
            self._known[key] = _shortened(self._of_new(value, names))
        return self._known[key]

    def _of_new(self, value: object, names: Names) -> str:
        if isinstance(value, torch.Tensor | np.ndarray | np.generic | jax.Array):
            return _of_array(value)
        if isinstance(value, torch.nn.Module):
            return self.of_module(value)
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if isinstance(value, MethodType):
            owner = self.of(value.__self__, names | {value.__name__})
            return f"{owner}.{self.of(value.__func__, names)}"
        if isinstance(value, functools.partial):
            return f"partial({self._all((value.func, value.args, value.keywords))})"
        if isinstance(value, type):
            return self._of_class(value, frozenset(vars(value)))
        return self._of_container(value, names)

    def _of_container(self, value: object, names: Names) -> str:
        name = type(value).__name__
        if isinstance(value, Mapping):
            read = {key: value[key] for key in value if key in names}
            return self._named("", read or value, names, "{}")
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._named(name, value._asdict(), names)
        if isinstance(value, list | tuple):
            return f"[{self._all(value, names)}]"
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(self.of(one, names) for one in value))}}}"
        if dataclasses.is_dataclass(value) and _is_of_library(type(value)):
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
            return self._named(name, fields, names)
        return self._of_object(value, names)

    def _of_object(self, value: Any, names: Names) -> str:
        own = getattr(value, "__dict__", {})
        if callable(value) and callable(own.get("__wrapped__")):  # wrapped by jax.jit or lru_cache
            return self.of(own["__wrapped__"], names)
        of_library = _is_of_library(type(value))
        if of_library and (callable(value) or not own or isinstance(value, ModuleType)):
            named = [getattr(value, name, None) for name in ("__qualname__", "__name__")]
            return next((one for one in named if isinstance(one, str)), type(value).__name__)
        calls = frozenset() if of_library else _OF_CALLS
        read = self._reached(type(value), names | calls)
        parts = {name: own[name] for name in sorted(read) if name in own}
        return self._named(self._of_class(type(value), read), parts, read)

    def of_module(self, module: torch.nn.Module, arrays: bool = True) -> str:
        """Describes a module, with the contents of its parameters and buffers if `arrays`."""
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(module))
        parts: dict[str, Any] = {}
        for path, one in module.named_modules():
            if _is_of_library(type(one)):
                read = frozenset(vars(one)) - {"training"} if arrays else frozenset()
            else:
                read = self._reached(type(one), _FORWARD)
                parts[f"{path}:{type(one).__name__}"] = self._of_class(type(one), read)
            own = {name: vars(one)[name] for name in read if name in vars(one)}
            parts |= {
                f"{path}.{name}": self.of(value, read)
                for name, value in sorted(own.items())
                if not name.startswith("_") and _is_setting(value)
            }
        if arrays:
            tensors = [*module.named_parameters(), *module.named_buffers()]
            parts |= {name: _of_array(tensor) for name, tensor in tensors}
        return f"{text} {_digest(parts.items())}" if parts else text

    def _of_function(self, function: FunctionType) -> str:
        name, code = function.__qualname__, function.__code__
        cells = _closed_over(function)
        if is_library(code.co_filename):
            return self._named(name, cells, frozenset())
        names = names_of_code(code)
        scope = function.__globals__
        read = {n: scope[n] for n in sorted(names) if n in scope and _counts(scope[n])}
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        parts = {**cells, **read, **({"defaults": defaults} if defaults else {})}
        return self._named(f"{name}[{digest_of_code(code)}]", parts, names)

    def _of_class(self, kind: type, names: Names) -> str:
        """Returns the name of a class, and the code of the methods that may run."""
        if _is_of_library(kind):
            return kind.__qualname__
        parts = []
        for base in kind.__mro__:
            for name in sorted(self._reached(kind, names) & vars(base).keys()):
                member = vars(base)[name]
                if _is_of_library(base):
                    continue
                parts += [(name, self.of(one, names)) for one in _functions(member)]
                if not name.startswith("__") and _is_setting(member):
                    parts.append((name, self.of(member, names)))
        return f"{kind.__qualname__}[{_digest(parts)}]" if parts else kind.__qualname__

    def _reached(self, kind: type, names: Iterable[str]) -> Names:
        """Returns the names of the attributes that methods of a class read, starting from some
        names.
        """
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                for base in kind.__mro__:
                    for function in _functions(vars(base).get(name)):
                        if not is_library(function.__code__.co_filename):
                            waiting += names_of_code(function.__code__)
        return frozenset(found)

    def _all(self, values: Iterable[Any], names: Names = frozenset()) -> str:
        return ", ".join(self.of(one, names) for one in values)

    def _named(
        self, name: str, parts: Mapping[Any, Any], names: Names, brackets: str = "()"
    ) -> str:
        texts = [f"{part}: {self.of(value, names)}" for part, value in parts.items()]
        return f"{name}{brackets[0]}{', '.join(texts)}{brackets[1]}"


def _counts(value: object) -> bool:
    """Returns True for a global variable whose value belongs to the description of a function."""
    return not isinstance(value, ModuleType) and not (
        isinstance(value, type) and _is_of_library(value)
    )


def _is_setting(value: object) -> bool:
    """Returns True for an attribute whose value belongs to the description of a method."""
    return isinstance(value, _SETTINGS)


def _functions(member: object) -> list[FunctionType]:
    """Returns the functions of a class member, such as a method or a property."""
    if isinstance(member, property):
        found = [member.fget, member.fset]
    elif isinstance(member, staticmethod | classmethod | functools.cached_property):
        found = [getattr(member, "func", None) or getattr(member, "__func__", None)]
    else:
        found = [member]
    return [one for one in found if isinstance(one, FunctionType)]


def _is_of_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "builtins" or (file is not None and is_library(file))


def _closed_over(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        if name == "__class__":  # the cell of `super()`
            continue
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
    return found


def _of_array(value: Any) -> str:
    """Returns a scalar array's number, or an array's shape, dtype and a digest of its bytes."""
    shape, dtype = list(value.shape), str(value.dtype)
    data = _bytes_of(value)
    if data is None:
        return f"{dtype}{shape}"
    plain = shape == [] and not isinstance(value, jax.Array) and dtype != "object"
    return repr(value.item()) if plain else f"{dtype}{shape} {_digest([data])}"


def _bytes_of(value: object) -> bytes | None:
    """Returns an array's bytes; None if it has no values, or holds pointers to objects."""
    if isinstance(value, torch.Tensor):
        if value.is_meta or value.is_quantized:
            return None
        dense = value.detach().cpu().resolve_conj().resolve_neg()
        dense = dense if dense.layout == torch.strided else dense.to_dense()
        return dense.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, jax.core.Tracer) or value.dtype == object:
        return None
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value).tobytes()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {_digest([text])}"


def _digest(parts: Iterable[Any]) -> str:
    """Returns a digest of texts or bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part if isinstance(part, bytes) else repr(part).encode())
    return found.hexdigest()[:12]
