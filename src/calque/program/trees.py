"""Flattens containers of tensors into leaves, and rebuilds them."""

import functools
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import torch

from calque.errors import TraceError
from calque.program.structures import Structure, opened
from calque.state.plain import has_attributes
from calque.upstream.torch_internals import pytree

VALUES = frozenset((bool, int, str, bytes, torch.dtype, torch.device, torch.Size, type(None)))
INEXACT = frozenset((float, complex))
_DICTS = frozenset((dict, OrderedDict, defaultdict))
_CONTAINERS = _DICTS | {tuple, list, deque}


@dataclass(frozen=True)
class Joined:
    """Rebuilds the arguments of a call that contain the same container several times.

    Attributes:
        spec: rebuilds them with separate containers.
        places: the path to each repeated occurrence from (args, kwargs), with the path to the
            first.
    """

    spec: Any
    places: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]

    def join(self, tree: object) -> Any:
        """Returns the tree with the same container at all its positions."""
        return _joined(tree, (), dict(self.places), {})


def _joined(tree: Any, steps: tuple[Any, ...], places: Any, made: dict[Any, Any]) -> Any:
    if steps in places:
        return made[places[steps]]
    if type(tree) is tuple:
        items = (_joined(item, (*steps, i), places, made) for i, item in enumerate(tree))
        made[steps] = tuple(items)
        return made[steps]
    if type(tree) in _CONTAINERS and not has_attributes(tree):
        made[steps] = tree
        for key, item in list(tree.items() if type(tree) in _DICTS else enumerate(tree)):
            tree[key] = _joined(item, (*steps, key), places, made)
    return tree


def _places(
    tree: Any, steps: tuple[Any, ...], met: set[int], first: dict[int, Any], found: list[Any]
) -> None:
    """Find containers that occur repeatedly, with the paths to each and to the first.

    Args:
        met: the ids of those that count.
    """
    if id(tree) in met:
        if id(tree) in first:
            found.append((steps, first[id(tree)]))
            return
        first[id(tree)] = steps
    for key, item in tree.items() if type(tree) in _DICTS else enumerate(tree):
        if type(item) in _CONTAINERS and not has_attributes(item):
            _places(item, (*steps, key), met, first, found)


def flatten(
    tree: object,
    is_leaf: Callable[[Any], bool] | None = None,
    met: list[int] | None = None,
    whole: bool = False,
) -> tuple[list[Any], Any]:
    """Flattens a pytree with JAX's and PyTorch's containers; returns its leaves and structure.

    Args:
        tree: the pytree.
        is_leaf: returns True for a container that is a leaf.
        met: a list, to which the ids of the lists, deques and dicts are added, and of tuples with
            tensors.
        whole: whether containers with attributes are leaves.

    Raises:
        TraceError: a container contains itself.
    """
    try:
        return _flatten(tree, is_leaf, [] if met is None else met, whole)
    except RecursionError:
        found = contained_in_itself(tree)
        if found is None:
            raise
        raise TraceError(
            f"a {type(found).__name__} contains itself, directly or through its items, so that its "
            "tensors cannot be listed.\nMake it an attribute of an object, and pass that."
        ) from None


def _flatten(
    tree: object, is_leaf: Callable[[Any], bool] | None, met: list[int], whole: bool
) -> tuple[list[Any], Any]:
    if whole and has_attributes(tree):
        return [tree], jax.tree_util.tree_structure(0)
    iterators: list[Any] = []
    is_plain = type(tree) in _CONTAINERS
    objects = [] if is_plain or not _may_hold_objects(type(tree)) else [tree]
    is_sorted = not is_plain or _in_order(tree, met, iterators, objects, is_leaf)
    leaf_of = is_leaf
    if objects and whole:
        leaf_of = functools.partial(_is_or_has_attributes, is_leaf=is_leaf)
    if iterators:
        with warnings.catch_warnings():  # JAX warns about iterators, which are leaves here
            warnings.filterwarnings("ignore", "Python iterable type", DeprecationWarning)
            return _flattened(tree, leaf_of, is_sorted)
    return _flattened(tree, leaf_of, is_sorted)


def _flattened(
    tree: object, is_leaf: Callable[[Any], bool] | None, is_sorted: bool
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


def _is_or_has_attributes(leaf: object, is_leaf: Callable[[Any], bool] | None) -> bool:
    return has_attributes(leaf) or _is(leaf, is_leaf)


def _is(leaf: object, is_leaf: Callable[[Any], bool] | None) -> bool:
    return is_leaf is not None and is_leaf(leaf)


def _flatten_as_torch(tree: object, is_leaf: Callable[[Any], bool] | None) -> tuple[list[Any], Any]:
    """Flattens like PyTorch, but treats a `torch.Size`, which would become a tuple, as a leaf."""
    return pytree.tree_flatten(tree, lambda one: type(one) is torch.Size or _is(one, is_leaf))


def flatten_call(
    args: object, kwargs: dict[str, Any], ordered: bool = False
) -> tuple[list[Any], Any]:
    """Like `flatten`, for a call's arguments.

    Args:
        ordered: whether the function sees the order of its keywords (it has `**kwargs`).
    """
    if len(kwargs) > 1 and not ordered:
        kwargs = {name: kwargs[name] for name in sorted(kwargs)}
    met: list[int] = []
    leaves, spec = flatten((args, kwargs), None, met, whole=True)
    if len(set(met)) < len(met):
        places: list[Any] = []
        _places((args, kwargs), (), set(met), {}, places)
        spec = Joined(spec, tuple(places))
    return leaves, spec


@functools.lru_cache(maxsize=1024)
def _iterates(kind: type) -> bool:
    return hasattr(kind, "__next__")


@functools.lru_cache(maxsize=1024)
def _may_hold_objects(kind: type) -> bool:
    """Returns True for a named tuple, or a class registered with PyTorch as a container."""
    if kind is torch.Size:
        return False
    return issubclass(kind, tuple) or kind in pytree.SUPPORTED_NODES


def contained_in_itself(tree: object) -> Any:
    """Returns a list, tuple, deque or dict in a tree that contains itself; None if there is none.

    >>> items = [1]
    >>> items.append((2, items))
    >>> contained_in_itself({"a": items}) is items, contained_in_itself([[], []])
    (True, None)
    """
    above: dict[int, Any] = {}
    whole: set[int] = set()
    stack: list[tuple[Any, bool]] = [(tree, False)]
    while stack:
        one, is_end = stack.pop()
        if is_end:
            whole.add(id(above.popitem()[1]))
        elif id(one) in above:
            return one
        elif type(one) in _CONTAINERS and id(one) not in whole:
            above[id(one)] = one
            stack.append((one, True))
            items = one.values() if type(one) in _DICTS else one
            stack += [(item, False) for item in items]
    return None


def _in_order(
    tree: Any,
    met: list[int],
    iterators: list[Any],
    objects: list[Any],
    is_leaf: Callable[[Any], bool] | None,
) -> bool:
    """Returns True if the keys of every dict are already sorted, as JAX would sort them.

    Args:
        tree: lists, tuples, deques and dicts.
        met: takes the ids of the lists, deques and dicts, and of tuples that hold such or tensors.
        iterators: takes the iterators in them.
        objects: takes those with attributes, and what else may hold such.
        is_leaf: as in `flatten`.
    """
    kind, found, counted = type(tree), True, type(tree) is not tuple
    before, key = len(met), id(tree)
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
            if has_attributes(item):
                objects.append(item)
            if is_leaf is None or not is_leaf(item):
                found &= _in_order(item, met, iterators, objects, is_leaf)
        elif issubclass(kind, torch.Tensor):
            counted = True
        elif _iterates(kind):
            iterators.append(item)
        elif _may_hold_objects(kind):
            objects.append(item)
    if counted or len(met) > before:
        met.append(key)
    return found


def unflatten(leaves: list[Any], spec: object) -> Any:
    """Inverts `flatten`."""
    if isinstance(spec, Structure):
        return spec.build(leaves)
    if isinstance(spec, Joined):
        return spec.join(unflatten(leaves, spec.spec))
    if isinstance(spec, pytree.TreeSpec):
        return pytree.tree_unflatten(leaves, spec)
    return jax.tree_util.tree_unflatten(spec, leaves)


def is_tensor(value: Any) -> bool:
    """Returns True if a value is a tensor of the device."""
    return issubclass(type(value), torch.Tensor) and value.device.type == "jax"


def tensors_in(value: object) -> tuple[list[Any], Any] | None:
    """Returns the leaves and the structure of a value that consists of tensors and plain values,
    otherwise None.
    """
    if isinstance(value, torch.Tensor):
        return ([value], None) if value.device.type == "jax" else None
    if not isinstance(value, tuple | list | dict) or has_attributes(value):
        found = None if type(value) in VALUES else _opened_or_registered(value)
        if found is None:
            return None
        leaves, spec = found
    else:
        try:
            leaves, spec = _flatten(value, None, [], True)
        except RecursionError:  # it contains itself
            return None
    plain = all(is_tensor(leaf) or type(leaf) in VALUES | INEXACT for leaf in leaves)
    return (leaves, spec) if plain and any(map(is_tensor, leaves)) else None


def _opened_or_registered(value: object) -> tuple[list[Any], Any] | None:
    leaves, spec = flatten(value, whole=True)
    alone = len(leaves) == 1 and leaves[0] is value
    return opened(value) if alone else (leaves, spec)


def unflatten_tensors(leaves: list[Any], spec: object) -> Any:
    """Inverts `tensors_in`."""
    return leaves[0] if spec is None else unflatten(leaves, spec)


def same_tree(spec: Any) -> Callable[[list[Any]], Any]:
    """Returns a function that rebuilds one tree; fast for a single leaf and flat tuples."""
    if isinstance(spec, jax.tree_util.PyTreeDef):
        if spec == jax.tree_util.tree_structure(0):
            return lambda leaves: leaves[0]
        return spec.unflatten
    return lambda leaves: unflatten(leaves, spec)
