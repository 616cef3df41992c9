"""Determines who owns code, a class or a module: the user, a package, Python, or the engine.

The engine consists of PyTorch, JAX, NumPy and calque itself. Its internal state is not part of the
program's state.
"""

import enum
import functools
import os
import sys
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch

from calque.errors.frames import is_library
from calque.errors.installed import package_of


class Owner(enum.IntEnum):
    """The owner of something; larger means closer to the user."""

    ENGINE = 0
    PYTHON = 1
    PACKAGE = 2
    USER = 3


_ENGINE = frozenset(("calque", "jax", "jaxlib", "numpy", "torch"))
_SERVING = frozenset(("filelock", "fsspec", "ml_dtypes", "mpmath", "opt_einsum", "sympy"))
"""Packages that PyTorch and JAX call for themselves while a program is traced, and that a program
may call, too."""
_CALQUE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOTS = (
    # The package's folder, not its parent, which contains other packages if calque is installed.
    _CALQUE + os.sep,
    # `calque run` replaces PyTorch's functions with functions of these modules.
    *(f"{_CALQUE}_cli{os.sep}{name}.py" for name in ("as_cuda", "cuda_names")),
    *(os.path.dirname(os.path.abspath(file)) + os.sep for file in (torch.__file__, np.__file__)),
)
_BACKPORT = f"{os.sep}typing_extensions.py"
"""Its functions replace those of `typing`."""


@functools.lru_cache(maxsize=16384)
def owner_of_file(file: str) -> Owner:
    """Returns the owner of a source file."""
    if file.startswith("<frozen") or file.startswith(_ROOTS):
        return Owner.PYTHON if file.startswith("<frozen") else Owner.ENGINE
    if file.endswith(_BACKPORT):
        return Owner.PYTHON
    # A folder of that name further down (`keras/src/backend/torch`) is another package's.
    if package := package_of(file):
        return Owner.ENGINE if package in _ENGINE else Owner.PACKAGE
    return Owner.PYTHON if is_library(file) else Owner.USER


@functools.lru_cache(maxsize=16384)
def serves_engine(file: str) -> bool:
    """Returns True if code is the program's only where the program calls it."""
    return package_of(file) in _SERVING


def owner_of_code(code: CodeType, held: dict[str, Any] | None = None) -> Owner:
    """Returns the owner of a code object; for code compiled from text, the owner of its globals."""
    file = code.co_filename
    if held is None or not file.startswith("<") or file.startswith("<frozen"):
        return owner_of_file(file)
    name = held.get("__name__")
    if "_tuple_new" in held and held.get("__builtins__") == {}:  # the `__new__` of a named tuple
        return Owner.PYTHON
    return owner_of_name(name) if isinstance(name, str) else Owner.USER


@functools.lru_cache(maxsize=16384)
def owner_of_name(module: str) -> Owner:
    """Returns the owner of a module, by its name."""
    root = module.partition(".")[0]
    if root in _ENGINE:
        return Owner.ENGINE
    if module == "__main__":
        return Owner.USER
    if root in sys.builtin_module_names or root == "builtins":
        return Owner.PYTHON
    # Bypasses `__getattr__`.
    file = getattr(sys.modules.get(module), "__dict__", {}).get("__file__")
    if isinstance(file, str):
        return owner_of_file(file)
    return Owner.PYTHON if root in sys.stdlib_module_names else Owner.USER


def home_of_class(kind: type) -> str:
    """Returns the name of a class's module; empty if it has none."""
    name = kind.__module__
    return name if isinstance(name, str) else ""


def owner_of_class(kind: type) -> Owner:
    """Returns the owner of a class."""
    module = kind.__dict__.get("__module__")
    return owner_of_name(module) if isinstance(module, str) else Owner.PYTHON


def owner_of_module(module: ModuleType) -> Owner:
    """Returns the owner of a module."""
    return owner_of_name(module.__name__)
