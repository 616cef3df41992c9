"""The representation of values in a running program: structs as tuples, padded sequences.

Unlike JAX's dicts, tuples keep the order of fields. Users' functions get the original containers.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.federated.errors import type_error
from calque.federated.types import (
    SequenceType,
    StructType,
    TensorType,
    Type,
    fields_of,
    rebuild,
    type_of_value,
)

_CHUNK = "#chunk"
"""The name of the axis of clients that are computed together."""

_in_chunk: ContextVar[bool] = ContextVar("_in_chunk", default=False)


def over_chunk(function: Callable[..., Any], size: int) -> Callable[..., Any]:
    """Applies `jax.vmap` over the clients of a chunk, over which `Sequence.longest` is computed."""

    def call(*args: Any) -> Any:
        before = _in_chunk.set(True)
        try:
            return jax.vmap(function, axis_size=size, axis_name=_CHUNK)(*args)
        finally:
            _in_chunk.reset(before)

    return call


@jax.tree_util.register_pytree_node_class
class Sequence:
    """Elements stacked along a leading axis; those after the first `length` are padding.

    The padding has arbitrary values: mask it, or use `reduce` and `sum`.

    Attributes:
        elements: a pytree of arrays of shape `[capacity, ...]`.
        length: an int32 scalar.

    >>> import jax.numpy as jnp
    >>> Sequence(jnp.array([1.0, 2.0, 9.0]), 2).sum()
    Array(3., dtype=float32)
    """

    def __init__(self, elements: Any, length: Any) -> None:
        self.elements = elements
        self.length = length

    @property
    def capacity(self) -> int:
        """The number of elements including padding."""
        return jax.tree.leaves(self.elements)[0].shape[0]

    @property
    def longest(self) -> Any:
        """The greatest length among the clients that are computed together.

        Elements after it can be skipped for all of these clients. In PyTorch, and when a client is
        computed alone, it is the length.
        """
        if isinstance(self.length, jax.core.Tracer) and _in_chunk.get():
            return jax.lax.pmax(self.length, _CHUNK)
        return self.length

    @property
    def mask(self) -> Any:
        """Booleans of shape `[capacity]`, False for padding."""
        if isinstance(self.length, torch.Tensor):
            return torch.arange(self.capacity, device=self.length.device) < self.length
        return jnp.arange(self.capacity) < self.length

    def reduce(self, zero: object, op: Callable[[Any, Any], Any]) -> Any:
        """Returns `op(op(op(zero, first), second), …)` over the elements without padding; not in
        PyTorch.
        """
        if isinstance(self.length, torch.Tensor):
            raise type_error(
                "Sequence.reduce is called in a PyTorch local function",
                "Use federated.sequence_reduce, a JAX local function, or elements and mask.",
            )

        def step(carry: Any, x: Any) -> tuple[Any, None]:
            index, element = x
            return self.unless_behind(index, lambda c: op(c, element), carry), None

        return jax.lax.scan(step, zero, (jnp.arange(self.capacity), self.elements))[0]

    def unless_behind(self, index: Any, step: Callable[[Any], Any], carry: Any) -> Any:
        """Returns `step(carry)` if the element of this index is not padding, otherwise `carry`.

        If no client of a chunk has the element, nothing is computed.
        """

        def own(carry: Any) -> Any:
            return jax.lax.cond(index < self.length, step, lambda c: c, carry)

        longest = self.longest
        if longest is self.length:
            return own(carry)
        return jax.lax.cond(index < longest, own, lambda c: c, carry)

    def sum(self) -> Any:
        """Returns the sum of the elements without padding."""

        def total(leaf: Any) -> Any:
            counts = self.mask.reshape(-1, *[1] * (leaf.ndim - 1))
            if isinstance(leaf, torch.Tensor):
                return torch.where(counts, leaf, torch.zeros_like(leaf)).sum(0, dtype=leaf.dtype)
            return jnp.where(counts, leaf, jnp.zeros_like(leaf)).sum(0, dtype=leaf.dtype)

        return jax.tree.map(total, self.elements)

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        """Returns the arrays, for JAX."""
        return (self.elements, self.length), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, Any]) -> "Sequence":
        """Returns a sequence of different arrays, for JAX."""
        return cls(*parts)

    def __repr__(self) -> str:
        return f"Sequence({self.elements!r}, length={self.length!r})"


def to_python(held: Any, kind: Type) -> Any:
    """Returns a held value in the containers of its type."""
    if isinstance(kind, StructType):
        return rebuild(kind, [to_python(h, t) for h, t in zip(held, kind, strict=True)])
    if isinstance(kind, SequenceType):
        return Sequence(to_python(held.elements, kind.element), held.length)
    return held


def to_held(value: object) -> Any:
    """Converts a value in containers to its held form."""
    if isinstance(value, Sequence):
        return Sequence(to_held(value.elements), jnp.asarray(value.length, jnp.int32))
    if isinstance(value, Mapping):
        return tuple(to_held(part) for part in value.values())
    if (fields := fields_of(value)) is not None:
        return tuple(map(to_held, fields.values()))
    if isinstance(value, list | tuple):
        return tuple(to_held(part) for part in value)
    return jnp.asarray(value, _weak_dtype(value))


def type_of_held(value: object) -> Type:
    """Returns the type of a value in containers, including sequences."""
    if isinstance(value, Sequence):
        return SequenceType(_without_leading_axis(type_of_value(value.elements)))
    if isinstance(value, Mapping):
        return StructType(tuple((n, type_of_held(v)) for n, v in value.items()), dict)
    if (fields := fields_of(value)) is not None:
        pairs = tuple((name, type_of_held(part)) for name, part in fields.items())
        return StructType(pairs, type(value))
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", getattr(value, "names", [None] * len(value)))
        pairs = tuple((n, type_of_held(v)) for n, v in zip(names, value, strict=True))
        return StructType(pairs, type(value))
    return type_of_value(value)


def shapes_of(kind: Type, unknown: int, leading: tuple[int, ...] = ()) -> Any:
    """Returns the shapes of a held value of a type, with `unknown` for unknown sizes."""
    match kind:
        case TensorType():
            sizes = tuple(unknown if size is None else size for size in kind.shape)
            return jax.ShapeDtypeStruct((*leading, *sizes), kind.dtype)
        case StructType():
            return tuple(shapes_of(part, unknown, leading) for part in kind)
        case SequenceType():
            elements = shapes_of(kind.element, unknown, (*leading, unknown))
            return Sequence(elements, jax.ShapeDtypeStruct(leading, np.dtype("int32")))
    raise type_error(
        f"a function of tensors cannot take {kind}", "It can take tensors, structs and sequences."
    )


def _without_leading_axis(kind: Type) -> Type:
    if isinstance(kind, TensorType):
        return TensorType(kind.dtype, kind.shape[1:])
    assert isinstance(kind, StructType)
    parts = tuple((name, _without_leading_axis(part)) for name, part in kind.elements)
    return StructType(parts, kind.container)


def _weak_dtype(value: object) -> Any:
    """Returns the dtype of a Python number according to `type_of_value`, or an array's dtype."""
    kind = type_of_value(value) if isinstance(value, bool | int | float | complex) else None
    return kind.dtype if isinstance(kind, TensorType) else None
