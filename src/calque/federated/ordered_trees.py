"""Converts dicts and dataclasses to ordered pytrees. JAX sorts the keys of dicts, and does not
support dataclasses.
"""

from collections import OrderedDict
from typing import Any

import jax

from calque.federated.types import fields_of, instance_of


@jax.tree_util.register_pytree_node_class
class Record:
    """The values of a dict or a dataclass instance, in order."""

    def __init__(self, kind: type, names: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        self.kind = kind
        self.names = names
        self.values = values

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[type, tuple[Any, ...]]]:
        """Returns the values, for JAX."""
        return self.values, (self.kind, self.names)

    @classmethod
    def tree_unflatten(cls, form: tuple[type, tuple[Any, ...]], values: Any) -> "Record":
        """Returns a record of new values, for JAX."""
        return cls(*form, tuple(values))


def as_records(tree: object) -> Any:
    """Returns a pytree with records instead of dicts and dataclass instances."""

    def record(leaf: object) -> Any:
        fields = _fields(leaf)
        if fields is None:
            return leaf
        kind = dict if isinstance(leaf, dict) else type(leaf)
        return Record(kind, tuple(fields), tuple(map(as_records, fields.values())))

    return jax.tree.map(record, tree, is_leaf=lambda leaf: _fields(leaf) is not None)


def from_records(tree: object) -> Any:
    """Returns a pytree with dicts and dataclass instances instead of records."""

    def instance(leaf: Any) -> Any:
        if not isinstance(leaf, Record):
            return leaf
        fields = dict(zip(leaf.names, map(from_records, leaf.values), strict=True))
        return fields if leaf.kind is dict else instance_of(leaf.kind, fields)

    return jax.tree.map(instance, tree, is_leaf=lambda leaf: isinstance(leaf, Record))


def _fields(leaf: Any) -> dict[Any, Any] | None:
    """Returns the contents of a dict or dataclass instance, by name; None for anything else."""
    if isinstance(leaf, dict) and not isinstance(leaf, OrderedDict):
        return leaf
    return fields_of(leaf)
