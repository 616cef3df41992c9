"""Names that the user's program may have set in PyTorch's own namespaces.

PyTorch's code is not part of the program's state, but a program can replace a function of
`torch.nn.functional` that modules call, or add a method to tensors.
"""

import functools
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Module
from torch.nn import functional as FUNCTIONAL

from calque.state.library_values import functions_of
from calque.state.names import names_of
from calque.state.ownership import Owner, owner_of_code
from calque.state.paths import Path
from calque.state.rows import NamedRow
from calque.state.stand_ins import original

METHODS_OF_TENSORS = frozenset(vars(torch.Tensor))
"""PyTorch's own methods."""
_LENDING = ("calque.program.whole_operands", "calque.program.moving_indexes")


def extend_with(row: NamedRow, names: Iterable[str], stack: list[tuple[Any, Path]]) -> None:
    """Add relevant names to the row of a namespace; user values under these names are queued for
    visiting.
    """
    assert isinstance(row.names, set)
    for name in names:
        if name in row.names:
            continue
        row.names.add(name)
        if name in row.owner and not _is_lent(row.owner[name]):
            value = row.before[name] = original(row.owner[name])
            if any(owner_of_code(f.__code__) is Owner.USER for f in functions_of(value)):
                stack.append((value, row.path.attribute(name)))


def _is_lent(value: object) -> bool:
    """Returns True for a method that the class of tensors has only while a function is traced."""
    return type(value) is types.FunctionType and value.__module__.startswith(_LENDING)


@functools.lru_cache(maxsize=1024)
def functional_of(kind: type[Module]) -> frozenset[str]:
    """Returns the functions of `torch.nn.functional` that the methods of a PyTorch class call.

    >>> sorted(functional_of(torch.nn.Linear))
    ['linear']
    """
    space = vars(FUNCTIONAL)
    found: set[str] = set()
    stack = [f.__code__ for value in vars(kind).values() for f in functions_of(value)]
    while stack:
        names = names_of(stack.pop())
        stack += names.nested
        for name in (names.words | names.globals) - found:
            value = space.get(name)
            if callable(value) and not isinstance(value, type | types.ModuleType):
                found.add(name)
                stack += [f.__code__ for f in functions_of(value)]
    return frozenset(found)
