"""Converts PyTorch's pytrees to tuples, lists and dicts, which every library knows."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from calque.upstream.torch_internals import pytree


def plain(tree: object) -> Any:
    """Returns a pytree with the same leaves that consists only of tuples, lists and dicts.

    Dataclasses and other registered containers become dicts if their parts have names, otherwise
    tuples.

    >>> from collections import namedtuple
    >>> plain([namedtuple("Pair", "a b")(1, 2), {"c": 3}])
    [{'a': 1, 'b': 2}, {'c': 3}]
    """
    leaves, spec = pytree.tree_flatten(tree)
    return _build(spec, iter(leaves))


def _build(spec: pytree.TreeSpec, leaves: Iterator[Any]) -> Any:
    if spec.is_leaf():
        return next(leaves)
    parts = [_build(child, leaves) for child in spec.children()]
    if spec.type is list:
        return parts
    if spec.type in (dict, OrderedDict):
        return dict(zip(spec.context, parts, strict=True))
    names = _names(spec)
    return tuple(parts) if names is None else dict(zip(names, parts, strict=True))


def _names(spec: pytree.TreeSpec) -> list[str] | None:
    """Returns the names of a registered container's parts; None for tuples and unnamed parts."""
    node = pytree.SUPPORTED_NODES.get(spec.type)
    if spec.type is tuple or node is None or node.flatten_with_keys_fn is None:
        return None
    blank: Any = node.unflatten_fn([object()] * spec.num_children, spec.context)
    keys = [key for key, _ in node.flatten_with_keys_fn(blank)[0]]
    found = [getattr(key, "key", getattr(key, "name", None)) for key in keys]
    names = [name for name in found if isinstance(name, str)]
    return names if len(names) == len(found) else None
