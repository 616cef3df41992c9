"""Data classes as pytrees, for functions that only know containers of JAX's."""

import dataclasses
from typing import Any

import jax
import torch


@jax.tree_util.register_pytree_node_class
class Record:
    """The fields of an instance of a data class, in their order."""

    def __init__(self, kind: type, values: tuple[Any, ...]) -> None:
        self.kind = kind
        self.values = values

    def tree_flatten(self) -> tuple[tuple[Any, ...], type]:
        """For JAX: the values of the fields."""
        return self.values, self.kind

    @classmethod
    def tree_unflatten(cls, kind: type, values: Any) -> "Record":
        """For JAX: a record of other values."""
        return cls(kind, tuple(values))


def as_records(tree: Any) -> Any:
    """A pytree with records in place of instances of data classes."""

    def record(leaf: Any) -> Any:
        if not _is_instance(leaf):
            return leaf
        names = [field.name for field in dataclasses.fields(leaf)]
        return Record(type(leaf), tuple(as_records(getattr(leaf, name)) for name in names))

    return jax.tree.map(record, tree, is_leaf=_is_instance)


def from_records(tree: Any) -> Any:
    """A pytree with instances of data classes in place of records."""

    def instance(leaf: Any) -> Any:
        if not isinstance(leaf, Record):
            return leaf
        names = [field.name for field in dataclasses.fields(leaf.kind)]
        values = map(from_records, leaf.values)
        return leaf.kind(**dict(zip(names, values, strict=True)))

    return jax.tree.map(instance, tree, is_leaf=lambda leaf: isinstance(leaf, Record))


def _is_instance(leaf: Any) -> bool:
    if isinstance(leaf, type | jax.Array | torch.Tensor):
        return False
    return dataclasses.is_dataclass(leaf)
