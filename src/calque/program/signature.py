"""The signature of a call: the properties of its arguments for which a program is compiled."""

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.nn import Module, Parameter

from calque.device.runtime.placement import placement_of, spread
from calque.program.function_arguments import IdentityKey
from calque.program.lazy_arguments import is_unread, value_of
from calque.program.structures import Structure
from calque.program.trees import INEXACT, VALUES, is_tensor

_SHARING = ("jax", "cpu")
_LASTING = (Module, type, FunctionType, MethodType)


class Attributes(tuple[Any, ...]):
    """A tensor's Python attributes, as part of a key."""

    __slots__ = ()


class Varying:
    """The type of a number or array among the arguments, whose values differ between calls.

    Args:
        part: its key, which ends with its values.
    """

    __slots__ = ("part",)

    def __init__(self, part: tuple[Any, ...]) -> None:
        self.part: tuple[Any, ...] = part

    def __eq__(self, other: object) -> bool:
        return type(other) is Varying and other.part[:-1] == self.part[:-1]

    def __hash__(self) -> int:
        return hash((Varying, self.part[:-1]))


class Placed(tuple[Any, ...]):
    """The placement of a tensor's storage, in a key."""

    __slots__ = ()


def _placement(tensor: torch.Tensor) -> Any:
    cell = getattr(tensor.untyped_storage(), "cell", None) if is_tensor(tensor) else None
    return None if cell is None else placement_of(cell.array)


class Called(tuple[Any, ...]):
    """The key of a callable, by its parts, because it may be created again for each call."""

    __slots__ = ()


_CALLED = frozenset((FunctionType, MethodType, functools.partial))
_DEEPEST = 4
"""The maximum nesting of functions; deeper ones are compared as objects."""


def _key_of_part(value: object, depth: int = 0) -> Any:
    if type(value) in _CALLED:
        return _key_of_called(value, depth + 1)
    return IdentityKey(value) if isinstance(value, torch.Tensor) else key_of(value)


def _key_of_called(value: Any, depth: int = 0) -> Any:
    """Returns the key of a function, by its code and closure values, or of a method, by its object.

    `self.loss` and a lambda are new objects in each call.
    """
    if type(value) is MethodType:
        return Called((MethodType, IdentityKey(value.__self__), IdentityKey(value.__func__)))
    if value.__dict__ or depth > _DEEPEST:
        return IdentityKey(value)
    if type(value) is FunctionType:
        kind = FunctionType, IdentityKey(value.__code__), IdentityKey(value.__globals__)
        try:
            closed = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # an unbound variable
            return IdentityKey(value)
        held, named = (*closed, *(value.__defaults__ or ())), value.__kwdefaults__ or {}
    else:
        kind = (functools.partial, _key_of_part(value.func, depth))
        held, named = value.args, value.keywords
    parts = tuple(_key_of_part(one, depth) for one in held)
    return Called((kind, parts, tuple((n, _key_of_part(v, depth)) for n, v in named.items())))


_COMPOSED: dict[type, Callable[[Any], Iterable[Any]]] = {
    slice: lambda s: (s.start, s.stop, s.step),
    range: lambda r: (r.start, r.stop, r.step),
    frozenset: tuple,
}
"""Immutable values, and their parts."""
_PARTS = VALUES | INEXACT


class Composed(tuple[Any, ...]):
    """The key of a slice, a range or a frozenset: its class and its parts, in order."""

    __slots__ = ()


def _key_of_composed(value: object) -> Any:
    parts = tuple(_COMPOSED[type(value)](value))
    if all(type(part) in _PARTS for part in parts):
        return Composed((type(value), *map(key_of, parts)))
    return IdentityKey(value)


def key_of(leaf: Any) -> Any:
    """Returns the part of the key for one leaf: shape and dtype, a value, or an identity."""
    kind = type(leaf)
    if kind is torch.Tensor or kind is Parameter or isinstance(leaf, torch.Tensor):
        if leaf.requires_grad:
            is_leaf = leaf.is_leaf
            gradient = (is_leaf, is_leaf and leaf.grad is not None)
        else:
            gradient = None
        key = (kind, leaf.shape, leaf.stride(), leaf.dtype, leaf.device.type, gradient)
        if spread.exists and (placement := _placement(leaf)) is not None:
            key = (*key, Placed((placement,)))
        held = leaf.__dict__
        return (*key, Attributes((n, _key_of_part(v)) for n, v in held.items())) if held else key
    if kind in VALUES:
        return (kind, leaf)
    if kind in INEXACT:
        return (kind, repr(leaf))  # -0.0 == 0.0 and nan != nan
    if kind in _CALLED:
        return _key_of_called(leaf)
    if kind in _COMPOSED:
        return _key_of_composed(leaf)
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != np.object_:
        return (kind, leaf.shape, leaf.dtype.str, leaf.strides, leaf.tobytes())
    return (kind, type(value_of(leaf)).__qualname__) if is_unread(leaf) else IdentityKey(leaf)


def value_key(leaf: object) -> Any:
    """Returns a Python value as part of a key, distinguishing values that need different programs.

    Raises:
        TypeError: it cannot be hashed.
    """
    kind = type(leaf)
    if kind in INEXACT:
        return (kind, repr(leaf))  # -0.0 == 0.0 and nan != nan
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"an argument of type {kind.__name__} cannot be hashed, but a program is compiled "
            "for each value of it. Pass an array, a tuple, a number or another immutable value"
        ) from None
    return (kind, leaf)


def difference(old: Any, new: Any) -> str:
    """Returns a description of the difference between two signatures: containers, modes, sharing,
    then leaves.
    """
    if isinstance(new[0], Structure) and not isinstance(old[0], Structure):
        names = ", ".join(sorted(kind.__name__ for kind in new[0].opened))
        return f"objects are compared by their contents from now on ({names})"
    if type(old[0]) is not type(new[0]) or old[0] != new[0]:
        return "the call has a different argument structure or count"
    if old[1] != new[1]:
        return "grad mode, inference mode, autocast or the default dtype changed"
    # If objects are flattened, the positions are not those of arguments.
    opened = isinstance(new[0], Structure)
    for index, (before, now) in enumerate(zip(old[3:], new[3:], strict=True)):
        place = "a value in the arguments" if opened else f"argument {index}"
        if _is_another(before, now):
            return f"{place} now refers to a different {type(now.value).__name__} object"
        if isinstance(before, Called) and isinstance(now, Called) and before != now:
            return f"{place} now is, or closes over, a different function or value"
        if isinstance(before, Varying) and before.part == now:
            return f"{place} is {_described(now)}, and the program depends on its value"
        if before != now:
            return f"{place} was {_described(before)} and is {_described(now)}"
    return "the arguments alias different storages"


def differ_by_objects(old: Any, new: Any) -> bool:
    """Returns True if two signatures differ only by argument objects of the same classes.

    Modules and functions do not count, because their number is limited.
    """
    if len(old) != len(new) or type(old[0]) is not type(new[0]) or old[:3] != new[:3]:
        return False
    pairs = [(a, b) for a, b in zip(old[3:], new[3:], strict=True) if a != b]
    return bool(pairs) and all(
        _is_another(a, b) and not isinstance(b.value, _LASTING) for a, b in pairs
    )


def replaced(old: Any, new: Any) -> set[type]:
    """Returns the classes of argument objects that were replaced with others."""
    if old is None or type(old[0]) is not type(new[0]) or old[0] != new[0]:
        return set()
    pairs = list(zip(old[3:], new[3:]))
    found = {type(b.value) for a, b in pairs if _is_another(a, b)}
    return found.union(*(_kinds_called(b) for a, b in pairs if a != b and _are_called(a, b)))


def _are_called(old: Any, new: Any) -> bool:
    """Returns True if both are keys of functions with the same code."""
    return _is_of_function(old) and _is_of_function(new) and old[0] == new[0]


def _is_of_function(key: object) -> bool:
    return isinstance(key, Called) and isinstance(key[0], tuple)  # a method's key is flat


def _kinds_called(key: Any) -> set[type]:
    """Returns the classes of a function, and of the functions in its key."""
    if not _is_of_function(key):
        return set()
    (kind, *inner), parts, named = key
    held = (*inner, *parts, *(part for _, part in named))
    return {kind}.union(*map(_kinds_called, held))


def holds_any(key: Any, kinds: Collection[type]) -> bool:
    """Returns True if objects of some classes are part of a signature."""
    return any(
        type(one.value) in kinds
        if isinstance(one, IdentityKey)
        else not _kinds_called(one).isdisjoint(kinds)
        for one in key[3:]
    )


def _is_another(old: Any, new: Any) -> bool:
    """Returns True if two keys belong to different objects of the same class."""
    both = isinstance(old, IdentityKey) and isinstance(new, IdentityKey)
    return both and old != new and type(old.value) is type(new.value)


def _described(key: Any) -> str:
    if isinstance(key, Varying):
        return _described(key.part)
    if isinstance(key, IdentityKey):
        return f"one {type(key.value).__name__} object"
    if isinstance(key, Called):
        return "one function or method"
    if isinstance(key, Composed):
        return f"{key[0].__name__}({', '.join(map(_described, key[1:]))})"
    if len(key) == 2:
        return key[1] if key[0] in INEXACT else repr(key[1])
    if len(key) == 5:
        return _described_array(*key)
    _, shape, stride, dtype, device, gradient, *attributes = key
    said = f"a tensor of shape {tuple(shape)}, stride {stride}, {dtype} on {device}"
    if gradient is not None:
        is_leaf, has_gradient = gradient
        computed = "" if is_leaf else ", computed from others"
        said += f", requires_grad{computed}{', with a .grad' if has_gradient else ''}"
    for placement in (found for found in attributes if type(found) is Placed):
        said += f", spread as {getattr(placement[0], 'spec', placement[0])}"
    attributes = [found for found in attributes if type(found) is Attributes]
    for name, part in (pair for found in attributes for pair in found):
        said += f", whose {name} is {_described(part)}"
    return said


def _described_array(
    kind: type, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...], contents: bytes
) -> str:
    """Returns the value of a NumPy scalar, and the kind of an array."""
    if issubclass(kind, np.generic):
        return f"{kind.__name__}({np.frombuffer(contents, dtype)[0]})"
    return f"a NumPy array of shape {shape} and dtype {np.dtype(dtype)}"


def sharing(leaves: Iterable[Any]) -> tuple[Any, ...]:
    """Returns which tensors share a storage, with their positions in it; empty if none do.

    The result has, for each tensor, the first tensor with the same storage, and the distance of
    their first elements.
    """
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.device.type in _SHARING]
    cells = [t.untyped_storage()._cdata for t in tensors]
    if len(set(cells)) == len(cells):
        return ()
    firsts = [cells.index(cell) for cell in cells]
    return tuple(
        (first, tensor.storage_offset() - tensors[first].storage_offset())
        for first, tensor in zip(firsts, tensors, strict=True)
    )


def arrangement(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Returns which tensors share a storage, and which tensors and arrays are one object; empty if
    none do or are.

    Code may ask for the latter (`x is y`, `len({x, y})`), and attributes set on one of two tensors
    over the same memory are not set on the other.
    """
    shared = sharing(leaves)
    mutable = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor | np.ndarray)]
    if len(set(mutable)) == len(mutable):
        return shared
    return (*shared, tuple(map(mutable.index, mutable)))
