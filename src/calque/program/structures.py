"""Flattens arguments: containers, and plain objects like containers.

A plain object (a dataclass instance, a batch of a user's or library's class) consists of its class
and the contents of its attributes. So an object that is created in each call provides leaves for
the same program, like a dict. Which containers and objects of a call are identical is part of the
structure.
"""

import enum
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.nn import Module
from torch.optim import Optimizer

from calque.program.function_arguments import CALLED, made_of, taken_apart
from calque.program.lazy_arguments import UnreadObject
from calque.state.ownership import Owner, home_of_class, owner_of_class
from calque.state.plain import OF_PYTHON, bare, base_of, has_attributes
from calque.state.rows import slots_of
from calque.state.values import ATOMIC
from calque.upstream.torch_internals import pytree

_LARGEST = 10_000
"""The maximum number of values to inspect in the arguments of a call."""
_LEAVES = ATOMIC | {torch.Tensor, torch.nn.Parameter, torch.Size}
_LASTING = (
    *(Module, Optimizer, type, enum.Enum, np.ndarray, np.generic, torch.Tensor),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
    *(torch.SymInt, torch.SymFloat, torch.SymBool),  # numbers whose values are not known
)
"""Values that exist only in limited number, or are compared by equality."""


class TooLarge(Exception):
    """Signals that arguments are too large to be flattened in each call."""


class StructureNode(NamedTuple):
    """A container or an object.

    Attributes:
        kind: its class.
        keys: the keys of a dict or a set, with their classes.
        items: the items of a dict, list or tuple.
        names: the names of the attributes, first those in its instance dict.
        n_slots: the number of slots, which come last.
        attributes: the values of the attributes.
        registered: rebuilds the object from its items, if the class is registered with JAX or
            PyTorch.
    """

    kind: type
    keys: Any = ()
    items: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    n_slots: int = 0
    attributes: tuple[Any, ...] = ()
    registered: Any = None


class SetItems(tuple[Any, ...]):
    """The items of a set with their classes, in the order of the set.

    The order depends on the order of insertion, so new sets are copies of the first one.
    """

    first: set[Any] | frozenset[Any]

    def __new__(cls, value: set[Any] | frozenset[Any]) -> "SetItems":
        """Returns the items of a set."""
        new = super().__new__(cls, [(type(item), item) for item in value])
        new.first = value.copy()
        return new


class Repeated(NamedTuple):
    """A repeated occurrence of a container or object, by its number."""

    number: int


@dataclass(frozen=True)
class Structure:
    """Rebuilds a call's arguments from leaves.

    Attributes:
        node: the node of (args, kwargs); None represents a leaf.
        opened: the classes of the flattened objects.
    """

    node: Any
    opened: frozenset[type]

    def build(self, leaves: list[Any]) -> Any:
        """Returns the arguments with these leaves, in new containers and objects."""
        return _build(self.node, iter(leaves), [])


class Flattening:
    """Flattens the arguments of one call.

    Args:
        opens: returns True if objects of a class are flattened, given whether they are inside a
            flattened object.
        unread: returns True if objects of a class are expected not to be used.
    """

    def __init__(self, opens: Callable[[type, bool], bool], unread: Callable[[type], bool]) -> None:
        self._opens = opens
        self._unread = unread
        self._numbers: dict[int, int] = {}
        self._count = 0
        self.leaves: list[Any] = []
        self.opened: set[type] = set()

    def visit(self, value: Any, inside: bool = False) -> Any:
        """Returns the node of a value.

        Raises:
            TooLarge: the value is too large.
        """
        kind = type(value)
        self._count += 1
        if self._count > _LARGEST:
            raise TooLarge
        if kind in _LEAVES or isinstance(value, torch.Tensor):
            return self._leaf(value)
        if kind is tuple:
            return StructureNode(kind, items=tuple([self.visit(item, inside) for item in value]))
        if kind in (set, frozenset) and _holds_values(value):
            if self._opens(kind, inside):
                self.opened.add(kind)
            return self._numbered(value) or StructureNode(kind, SetItems(value))
        if kind in (dict, list):
            return self._numbered(value) or self._contents(value, kind, inside)
        if kind in CALLED and self._opens(kind, False):
            node = self._called(value, kind)
            return self._leaf(value) if node is None else node
        if kind is not set and self._opens(kind, inside):
            self.opened.add(kind)
            return self._numbered(value) or self._object(value, kind)
        return self._leaf(value) if has_attributes(value) else self._registered(value, kind, inside)

    def _numbered(self, value: object) -> Repeated | None:
        number = self._numbers.get(id(value))
        if number is not None:
            return Repeated(number)
        self._numbers[id(value)] = len(self._numbers)
        return None

    def _contents(self, value: object, kind: type, inside: bool) -> StructureNode:
        if isinstance(value, dict):
            found = dict.items(value)
            keys = tuple([(type(key), key) for key, _ in found])
            return StructureNode(kind, keys, tuple([self.visit(item, inside) for _, item in found]))
        if isinstance(value, list):
            items = [self.visit(item, inside) for item in list.__iter__(value)]
            return StructureNode(kind, items=tuple(items))
        return StructureNode(kind)

    def _called(self, value: object, kind: type) -> Any:
        """Returns the node of a function; None if it has more than its code and closure values."""
        found = taken_apart(value)
        if found is None:
            return None
        again = self._numbered(value)
        if again is None:
            self.opened.add(kind)
            keys, names, parts = found
            items = [self._part(part) for part in parts]
            again = StructureNode(kind, keys, tuple(items), names)
        return again

    def _part(self, value: object) -> Any:
        """Returns a part of a function, which may contain objects that nothing else refers to."""
        return self.visit(value) if type(value) in CALLED else self._leaf(value)

    def _object(self, value: Any, kind: type) -> StructureNode:
        node = self._contents(value, kind, True)
        held = getattr_of(value, "__dict__", {})
        slots = {s: getattr_of(value, s) for s in slots_of(kind) if hasattr_of(value, s)}
        attributes = [self.visit(item, True) for item in (*held.values(), *slots.values())]
        names = (*held, *slots)
        return node._replace(names=names, n_slots=len(slots), attributes=tuple(attributes))

    def _registered(self, value: object, kind: type, inside: bool) -> Any:
        """Returns the node of a container registered with JAX or PyTorch, or of a leaf."""
        items, spec = jax.tree_util.tree_flatten(value, lambda one: one is not value)
        if jax.tree_util.treedef_is_leaf(spec):
            if kind not in pytree.SUPPORTED_NODES:
                return self._leaf(value, inside)
            items, spec = pytree.tree_flatten(value, lambda one: one is not value)
        visited = tuple([self.visit(item, inside) for item in items])
        return StructureNode(kind, items=visited, registered=spec)

    def _leaf(self, value: object, inside: bool = False) -> None:
        if inside and not isinstance(value, _LASTING) and self._unread(type(value)):
            value = UnreadObject(value)
        self.leaves.append(value)


def _build_all(node: StructureNode, leaves: Iterator[Any], made: list[Any]) -> list[Any]:
    return [_build(item, leaves, made) for item in node.items]


def _holds_values(value: Any) -> bool:
    """Returns True if a set holds plain values, and a copy of it has the same order."""
    items = list(value)
    return all(type(item) in ATOMIC for item in items) and list(value.copy()) == items


def _build(node: Any, leaves: Iterator[Any], made: list[Any]) -> Any:
    if node is None:
        return next(leaves)
    if type(node) is Repeated:
        return made[node.number]
    kind = node.kind
    if node.registered is not None:
        items = [_build(item, leaves, made) for item in node.items]
        if isinstance(node.registered, pytree.TreeSpec):
            return pytree.tree_unflatten(items, node.registered)
        return jax.tree_util.tree_unflatten(node.registered, items)
    if kind is tuple:
        return tuple([_build(item, leaves, made) for item in node.items])
    if kind in (set, frozenset):
        made.append(node.keys.first.copy())
        return made[-1]
    if kind in CALLED:
        return made_of(kind, node.keys, node.names, lambda: _build_all(node, leaves, made), made)
    new = bare(kind)
    made.append(new)
    items = [_build(item, leaves, made) for item in node.items]
    if isinstance(new, OrderedDict):
        for (_, key), item in zip(node.keys, items):
            OrderedDict.__setitem__(new, key, item)
    elif isinstance(new, dict):
        dict.update(new, {key: item for (_, key), item in zip(node.keys, items)})
    elif isinstance(new, list):
        list.extend(new, items)
    values = [_build(one, leaves, made) for one in node.attributes]
    count = len(values) - node.n_slots
    if count:
        new.__dict__.update(zip(node.names[:count], values))
    for name, value in zip(node.names[count:], values[count:]):
        object.__setattr__(new, name, value)
    return new


def opened(value: object) -> tuple[list[Any], Structure] | None:
    """Returns a plain object's leaves and a function that rebuilds it; None for other objects."""
    if not can_open(type(value)):
        return None
    flattening = Flattening(lambda kind, inside: can_open(kind), lambda kind: False)
    try:
        node = flattening.visit(value)
    except TooLarge:
        return None
    return flattening.leaves, Structure(node, frozenset(flattening.opened))


def objects_in(given: object, opened: frozenset[type]) -> Iterator[tuple[Any, type]]:
    """Yields the objects of some classes in a call's arguments, and the containers in them.

    Yields:
        each object or container, with the class of the innermost object that is or contains it.
    """
    stack: list[tuple[Any, type | None]] = [(given, None)]
    seen: dict[int, Any] = {}
    while stack:
        value, inside = stack.pop()
        kind = type(value)
        if kind in _LEAVES or id(value) in seen:
            continue
        if isinstance(value, _LASTING) and kind not in opened:
            continue
        seen[id(value)] = value
        if kind in CALLED and kind in opened:
            found = taken_apart(value)
            stack += [(part, None) for part in (() if found is None else found[2])]
            yield value, kind
            continue
        if kind in opened:
            inside = kind
            held = getattr_of(value, "__dict__", {})
            stack += [(item, inside) for item in held.values()]
            stack += [(getattr_of(value, s, None), inside) for s in slots_of(kind)]
        if inside is not None and kind is not tuple:
            yield value, inside
        if isinstance(value, dict):
            stack += [(item, inside) for item in dict.values(value)]
        elif isinstance(value, list | tuple):
            stack += [(item, inside) for item in value]


# Objects ------------------------------------------------------------------------------------------


def getattr_of(value: object, name: str, *default: Any) -> Any:
    """Returns an attribute that is stored in the object, bypassing its class."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def hasattr_of(value: object, name: str) -> bool:
    """Returns True if an attribute is stored in the object."""
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def can_open(kind: type) -> bool:
    """Returns True if objects of a class consist only of their class and attributes."""
    if issubclass(kind, (*_LASTING, BaseException)) or kind in (dict, list):
        return False
    if any(hasattr(kind, name) for name in ("__del__", "__next__", "__calque_state__")):
        return False
    if owner_of_class(kind) < Owner.PACKAGE and kind not in OF_PYTHON:
        return home_of_class(kind).startswith("torch.distributions") and base_of(kind) is object
    return base_of(kind) is not None
