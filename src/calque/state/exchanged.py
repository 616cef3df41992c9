"""Objects that take the places of others with the same contents."""

import copy
from collections import Counter
from collections.abc import Iterable
from types import CellType, FunctionType, MethodType
from typing import Any

from calque.state.contents import elements_of
from calque.state.rows import Row
from calque.state.values import instance_dict, same_value


def parts_of(value: Any) -> tuple[Any, ...]:
    """Returns the parts of an immutable object, or of a function's closure."""
    kind = type(value)  # `isinstance` could run user code for `__class__`
    if kind is MethodType:
        return value.__func__, value.__self__
    if kind is FunctionType:
        return value.__closure__ or ()
    return tuple(elements_of(value)) if issubclass(kind, tuple | frozenset) else ()


def is_as_filled(a: CellType, b: CellType) -> bool:
    """Returns True if two variables that the program does not read have equal values, or none."""
    try:
        return a is b or same_value(a.cell_contents, b.cell_contents)
    except ValueError:
        return False


def holders(values: Iterable[Any]) -> Counter[int]:
    """Returns the number of references to each object, by its id."""
    found: Counter[int] = Counter()
    stack = list(values)
    while stack:
        value = stack.pop()
        found[id(value)] += 1
        if found[id(value)] == 1:
            stack += parts_of(value)
    return found


def containers(old: object, new: object) -> list[tuple[Any, Any, Any]]:
    """Returns the possible rows of two objects of the same class: the key, the new container and
    its key.
    """
    found: list[tuple[Any, Any, Any]] = [(id(old), new, id(new))]
    found += [((mark, id(old)), new, (mark, id(new))) for mark in ("k", "h", "s", "f", "n")]
    before, now = instance_dict(old), instance_dict(new)
    if before is not None and now is not None:
        found += [(("d", id(old)), now, ("d", id(new))), (id(before), now, id(now))]
    return found


def like(row: Row, owner: object) -> Row:
    """Returns the row for a different container."""
    other = copy.copy(row)
    other.owner = owner
    return other
