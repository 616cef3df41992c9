"""The signature of a call: what of its arguments a program is compiled for."""

import functools
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import jax
import numpy as np
import torch
from torch.nn import Module, Parameter

from calque.device.runtime.placement import placement_of, spread
from calque.program.structures import Structure, opened
from calque.program.unread import is_unread, value_of
from calque.upstream.torch_internals import pytree

_VALUES = frozenset((bool, int, str, bytes, torch.dtype, torch.device, torch.Size, type(None)))
_SHARING = ("jax", "cpu")
_DICTS = frozenset((dict, OrderedDict, defaultdict))
_CONTAINERS = _DICTS | {tuple, list, deque}
_INEXACT = frozenset((float, complex))
_LASTING = (Module, type, FunctionType, MethodType)


class Same:
    """An object as a key: equal to itself only, and kept alive so that its id is not used again."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


@dataclass(frozen=True)
class Joined:
    """Puts back the leaves of a call whose arguments are one container in several places.

    Attributes:
        spec: what puts them into as many containers.
        places: the keys that lead to each such place from (args, kwargs), with those of the first.
    """

    spec: Any
    places: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]

    def join(self, tree: Any) -> Any:
        """The tree with one container at all its places."""
        return _joined(tree, (), dict(self.places), {})


def _joined(tree: Any, steps: tuple[Any, ...], places: Any, made: dict[Any, Any]) -> Any:
    if steps in places:
        return made[places[steps]]
    if type(tree) is tuple:
        return tuple(_joined(item, (*steps, i), places, made) for i, item in enumerate(tree))
    if type(tree) in _CONTAINERS:
        made[steps] = tree
        for key, item in list(tree.items() if type(tree) in _DICTS else enumerate(tree)):
            tree[key] = _joined(item, (*steps, key), places, made)
    return tree


def _places(tree: Any, steps: tuple[Any, ...], first: dict[int, Any], found: list[Any]) -> None:
    """Find the containers that are met once more, by what leads there and to the first place."""
    if type(tree) is not tuple:
        if id(tree) in first:
            found.append((steps, first[id(tree)]))
            return
        first[id(tree)] = steps
    for key, item in tree.items() if type(tree) in _DICTS else enumerate(tree):
        if type(item) in _CONTAINERS:
            _places(item, (*steps, key), first, found)


def flatten(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None, met: list[int] | None = None
) -> tuple[list[Any], Any]:
    """The leaves of a pytree and what puts them back; knows JAX's and PyTorch's containers.

    Args:
        tree: the pytree.
        is_leaf: says of a container that it is a leaf.
        met: takes the ids of the lists, deques and dicts.
    """
    met = [] if met is None else met
    iterators: list[Any] = []
    is_sorted = type(tree) not in _CONTAINERS or _in_order(tree, met, iterators)
    if iterators:
        with warnings.catch_warnings():  # JAX warns of iterators that are leaves, as they are meant
            warnings.filterwarnings("ignore", "Python iterable type", DeprecationWarning)
            return _flattened(tree, is_leaf, is_sorted)
    return _flattened(tree, is_leaf, is_sorted)


def _flattened(
    tree: Any, is_leaf: Callable[[Any], bool] | None, is_sorted: bool
) -> tuple[list[Any], Any]:
    if not is_sorted:  # JAX would sort the keys of dicts
        leaves, ordered = _flatten_as_torch(tree, is_leaf)
        if jax.tree_util.all_leaves(
            leaves, is_leaf=lambda leaf: leaf is None or _is(leaf, is_leaf)
        ):
            return leaves, ordered
    leaves, spec = jax.tree_util.tree_flatten(tree, is_leaf)
    for leaf in leaves:
        if type(leaf) in pytree.SUPPORTED_NODES and type(leaf) is not torch.Size:
            if not _is(leaf, is_leaf):
                return _flatten_as_torch(tree, is_leaf)
    return leaves, spec


def _is(leaf: Any, is_leaf: Callable[[Any], bool] | None) -> bool:
    return is_leaf is not None and is_leaf(leaf)


def _flatten_as_torch(tree: Any, is_leaf: Callable[[Any], bool] | None) -> tuple[list[Any], Any]:
    """Flattens as PyTorch does, but a tensor's size is a leaf: it would come back as a tuple."""
    return pytree.tree_flatten(tree, lambda one: type(one) is torch.Size or _is(one, is_leaf))


def flatten_call(args: Any, kwargs: dict[str, Any], ordered: bool = False) -> tuple[list[Any], Any]:
    """Like `flatten`, for a call's arguments.

    Args:
        ordered: whether the function sees the order of its keywords (it has `**kwargs`).
    """
    if len(kwargs) > 1 and not ordered:
        kwargs = {name: kwargs[name] for name in sorted(kwargs)}
    met: list[int] = []
    leaves, spec = flatten((args, kwargs), None, met)
    if len(set(met)) < len(met):
        places: list[Any] = []
        _places((args, kwargs), (), {}, places)
        spec = Joined(spec, tuple(places))
    return leaves, spec


@functools.lru_cache(maxsize=1024)
def _iterates(kind: type) -> bool:
    return hasattr(kind, "__next__")


def _in_order(tree: Any, met: list[int], iterators: list[Any]) -> bool:
    """Returns True if the keys of every dict are sorted as they are, as JAX would sort them.

    Args:
        tree: lists, tuples, deques and dicts.
        met: takes the ids of the lists, deques and dicts.
        iterators: takes the iterators in them.
    """
    kind, found = type(tree), True
    if kind is not tuple:
        met.append(id(tree))
    if kind in _DICTS:
        if len(tree) > 1 and kind is not OrderedDict:
            keys = list(tree)
            try:
                found = keys == sorted(keys)
            except TypeError:
                found = False
        tree = tree.values()
    for item in tree:
        kind = type(item)
        if kind in _CONTAINERS:
            found &= _in_order(item, met, iterators)
        elif _iterates(kind):
            iterators.append(item)
    return found


def unflatten(leaves: list[Any], spec: Any) -> Any:
    """The inverse of `flatten`."""
    if isinstance(spec, Structure):
        return spec.build(leaves)
    if isinstance(spec, Joined):
        return spec.join(unflatten(leaves, spec.spec))
    if isinstance(spec, pytree.TreeSpec):
        return pytree.tree_unflatten(leaves, spec)
    return jax.tree_util.tree_unflatten(spec, leaves)


def is_tensor(value: Any) -> bool:
    """Returns True if a value is a tensor of the device."""
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


def tensors_in(value: Any) -> tuple[list[Any], Any] | None:
    """The leaves and the container of a value made of tensors and plain values; else None."""
    if isinstance(value, torch.Tensor):
        return ([value], None) if value.device.type == "jax" else None
    if not isinstance(value, tuple | list | dict):
        found = None if type(value) in _VALUES else _opened_or_registered(value)
        if found is None:
            return None
        leaves, spec = found
    else:
        leaves, spec = flatten(value)
    plain = all(is_tensor(leaf) or type(leaf) in _VALUES | _INEXACT for leaf in leaves)
    return (leaves, spec) if plain and any(map(is_tensor, leaves)) else None


def _opened_or_registered(value: Any) -> tuple[list[Any], Any] | None:
    leaves, spec = flatten(value)
    alone = len(leaves) == 1 and leaves[0] is value
    return opened(value) if alone else (leaves, spec)


def unflatten_tensors(leaves: list[Any], spec: Any) -> Any:
    """The inverse of `tensors_in`."""
    return leaves[0] if spec is None else unflatten(leaves, spec)


class Attributes(tuple[Any, ...]):
    """A tensor's own attributes, as part of a key."""

    __slots__ = ()


class Placed(tuple[Any, ...]):
    """Where a tensor's storage lies, in a key."""

    __slots__ = ()


def _placement(tensor: torch.Tensor) -> Any:
    cell = getattr(tensor.untyped_storage(), "cell", None) if is_tensor(tensor) else None
    return None if cell is None else placement_of(cell.array)


class Called(tuple[Any, ...]):
    """Something that is called, by what it is made of: it may be made anew for each call."""

    __slots__ = ()


_CALLED = frozenset((FunctionType, MethodType, functools.partial))
_DEEPEST = 4
"""How many functions may hold one another before one is compared as an object."""


def _key_of_part(value: Any, depth: int = 0) -> Any:
    if type(value) in _CALLED:
        return _key_of_called(value, depth + 1)
    return Same(value) if isinstance(value, torch.Tensor) else key_of(value)


def _key_of_called(value: Any, depth: int = 0) -> Any:
    """A function by its code and what it closes over, a method by its object.

    `self.loss` and a lambda are other objects at each call.
    """
    if type(value) is MethodType:
        return Called((MethodType, Same(value.__self__), Same(value.__func__)))
    if value.__dict__ or depth > _DEEPEST:
        return Same(value)
    if type(value) is FunctionType:
        kind = FunctionType, Same(value.__code__), Same(value.__globals__)
        try:
            closed = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # a variable that has no value yet
            return Same(value)
        held, named = (*closed, *(value.__defaults__ or ())), value.__kwdefaults__ or {}
    else:
        kind = (functools.partial, _key_of_part(value.func, depth))
        held, named = value.args, value.keywords
    parts = tuple(_key_of_part(one, depth) for one in held)
    return Called((kind, parts, tuple((n, _key_of_part(v, depth)) for n, v in named.items())))


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
    if kind in _VALUES:
        return (kind, leaf)
    if kind in _INEXACT:
        return (kind, repr(leaf))  # -0.0 == 0.0 and nan != nan
    if kind in _CALLED:
        return _key_of_called(leaf)
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != np.object_:
        return (kind, leaf.shape, leaf.dtype.str, leaf.tobytes())
    return (kind, type(value_of(leaf)).__qualname__) if is_unread(leaf) else Same(leaf)


def value_key(leaf: Any) -> Any:
    """A Python value as part of a key: values are told apart where they give other programs.

    Raises:
        TypeError: it cannot be hashed.
    """
    kind = type(leaf)
    if kind in _INEXACT:
        return (kind, repr(leaf))  # -0.0 == 0.0 and nan != nan
    try:
        hash(leaf)
    except TypeError:
        raise TypeError(
            f"an argument is {kind.__name__}, which cannot be hashed: a program is compiled for "
            "each such value. Pass an array, a tuple, a number or another value that cannot change"
        ) from None
    return (kind, leaf)


def difference(old: Any, new: Any) -> str:
    """Returns what differs in two signatures: containers, modes, sharing, then each leaf."""
    if isinstance(new[0], Structure) and not isinstance(old[0], Structure):
        names = ", ".join(sorted(kind.__name__ for kind in new[0].opened))
        return f"objects are compared by what they hold from now on ({names})"
    if type(old[0]) is not type(new[0]) or old[0] != new[0]:
        return "the call has a different argument structure or count"
    if old[1] != new[1]:
        return "grad mode, inference mode, autocast or the default dtype changed"
    for index, (before, now) in enumerate(zip(old[3:], new[3:], strict=True)):
        if _is_another(before, now):
            return f"argument {index} now refers to a different {type(now.value).__name__} object"
        if isinstance(before, Called) and isinstance(now, Called) and before != now:
            return f"argument {index} now is, or closes over, a different function or value"
        if before != now:
            return f"argument {index} was {_spoken(before)} and is {_spoken(now)}"
    return "the arguments alias different storages"


def differ_by_objects(old: Any, new: Any) -> bool:
    """Returns True if two signatures differ by nothing but objects of the same classes as
    arguments.

    Modules and functions do not count: there are only so many of them.
    """
    if len(old) != len(new) or type(old[0]) is not type(new[0]) or old[:3] != new[:3]:
        return False
    pairs = [(a, b) for a, b in zip(old[3:], new[3:], strict=True) if a != b]
    return bool(pairs) and all(
        _is_another(a, b) and not isinstance(b.value, _LASTING) for a, b in pairs
    )


def replaced(old: Any, new: Any) -> set[type]:
    """The classes of the objects among the arguments in whose place another one stands."""
    if old is None or type(old[0]) is not type(new[0]) or old[0] != new[0]:
        return set()
    return {type(b.value) for a, b in zip(old[3:], new[3:]) if _is_another(a, b)}


def holds_any(key: Any, kinds: Collection[type]) -> bool:
    """Returns True if objects of some classes are part of a signature."""
    return any(isinstance(one, Same) and type(one.value) in kinds for one in key[3:])


def _is_another(old: Any, new: Any) -> bool:
    """Returns True if two keys are of different objects of one class."""
    both = isinstance(old, Same) and isinstance(new, Same)
    return both and old != new and type(old.value) is type(new.value)


def _spoken(key: Any) -> str:
    if isinstance(key, Same):
        return f"one {type(key.value).__name__} object"
    if isinstance(key, Called):
        return "one function or method"
    if len(key) == 2:
        return key[1] if key[0] in _INEXACT else repr(key[1])
    if len(key) == 4:
        return f"a numpy value of shape {key[1]}"
    _, shape, stride, dtype, device, gradient, *attributes = key
    requires = ", requires_grad" if gradient else ""
    said = f"a tensor of shape {tuple(shape)}, stride {stride}, {dtype} on {device}{requires}"
    for placement in (found for found in attributes if type(found) is Placed):
        said += f", spread as {getattr(placement[0], 'spec', placement[0])}"
    attributes = [found for found in attributes if type(found) is Attributes]
    for name, part in (pair for found in attributes for pair in found):
        said += f", whose {name} is {_spoken(part)}"
    return said


def sharing(leaves: Iterable[Any]) -> tuple[Any, ...]:
    """Which tensors share a storage, and how they lie in it; empty if none do.

    For each tensor the first that has its storage, and the distance of their first elements.
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


def same_tree(spec: Any) -> Callable[[list[Any]], Any]:
    """A function that puts leaves back into one tree; fast for a single leaf and flat tuples."""
    if isinstance(spec, jax.tree_util.PyTreeDef):
        if spec == jax.tree_util.tree_structure(0):
            return lambda leaves: leaves[0]
        return spec.unflatten
    return lambda leaves: unflatten(leaves, spec)
