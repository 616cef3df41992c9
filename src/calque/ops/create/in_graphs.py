"""Operators of functional graphs without rules: on the device they are geometry or allocation.

On the device a view is a geometry and an allocation makes a storage; neither reaches a rule. In a
functional graph both are pure functions of arrays, and sizes may be JAX's symbolic dimensions.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from calque.ops.table.helpers import cast
from calque.ops.table.promotion import default_float
from calque.ops.table.real_sizes import RealSize, truncated
from calque.ops.table.registry import RULES
from calque.upstream.jax_internals import is_symbolic_dim

_COPIED = {
    "aten::_unsafe_view": "aten::view_copy",
    "aten::reshape": "aten::view_copy",
    "aten::_reshape_alias": "aten::_reshape_copy",
}


def view_rule(name: str) -> Any:
    """Returns the rule that computes a view operator as a copy (`aten::view_copy` for
    `aten::view`).
    """
    base, dot, overload = name.partition(".")
    return RULES.get(_COPIED.get(name, f"{base}_copy{dot}{overload}"))


def _same(self: Array, **_: Any) -> Array:
    return self


def _to_copy(self: Array, dtype: Any = None, **_: Any) -> Array:
    return self if dtype is None else cast(self, dtype)


def _copy(self: Array, src: Array, **_: Any) -> Array:
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)


def _full_like(self: Array, fill_value: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.full(self.shape, cast(jnp.asarray(fill_value), dtype or self.dtype))


def _empty_like(self: Array, dtype: Any = None, **_: Any) -> Array:
    return jnp.zeros(self.shape, dtype or self.dtype)


def _ones_like(self: Array, dtype: Any = None, **_: Any) -> Array:
    return jnp.ones(self.shape, dtype or self.dtype)


def _new(self: Array, size: Any, *_: Any, dtype: Any = None, **__: Any) -> Array:
    return jnp.zeros(tuple(size), dtype or self.dtype)


def _new_ones(self: Array, size: Any, *_: Any, dtype: Any = None, **__: Any) -> Array:
    return jnp.ones(tuple(size), dtype or self.dtype)


def _new_full(self: Array, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.full(tuple(size), cast(jnp.asarray(fill_value), dtype or self.dtype))


def _empty(size: Any, *_: Any, dtype: Any = None, **__: Any) -> Array:
    return jnp.zeros(tuple(size), dtype or default_float())


def _size(self: Array, dim: int) -> Any:
    return self.shape[dim]


def _count(self: Array) -> Any:
    count: Any = 1
    for size in self.shape:
        count = count * size
    return count


ARRAY_OPS: dict[str, Callable[..., Any]] = {
    "aten::alias": _same,
    "aten::clone": _same,
    "aten::contiguous": _same,
    "aten::detach": _same,
    "aten::lift": _same,
    "aten::lift_fresh": _same,
    "aten::resolve_conj": _same,
    "aten::resolve_neg": _same,
    "aten::_conj": jnp.conj,
    "aten::_neg_view": jnp.negative,
    "aten::_to_copy": _to_copy,
    "aten::copy": _copy,
    "aten::full_like": _full_like,
    "aten::empty_like": _empty_like,
    "aten::zeros_like": _empty_like,
    "aten::ones_like": _ones_like,
    "aten::new_empty": _new,
    "aten::new_empty_strided": _new,
    "aten::new_zeros": _new,
    "aten::new_ones": _new_ones,
    "aten::new_full": _new_full,
    "aten::empty.memory_format": _empty,
    "aten::empty_permuted": _empty,
    "aten::empty_strided": _empty,
    "aten::sym_size.int": _size,
    "aten::sym_numel": _count,
}
"""Uninitialized memory is zero here: a program that reads it is wrong on any device."""


def _resizing(rule: str, ndim: int) -> Callable[..., Array]:
    """Returns the rule of `upsample_*.vec`, which takes either the new size or the scales, from
    that of the overload that takes both."""

    def resize(input: Array, output_size: Any, *options: Any) -> Array:
        *flags, scales = options
        size = output_size
        if size is None:
            pairs = zip(input.shape[-ndim:], scales, strict=True)
            size = [truncated(RealSize(n) * s if is_symbolic_dim(n) else n * s) for n, s in pairs]
        return RULES[rule].function(input, size, *flags, *(scales or [None] * ndim))

    return resize


for _name, _ndim in (
    *((f"upsample_nearest{n}d", n) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", n) for n in (1, 2, 3)),
    ("upsample_linear1d", 1),
    ("upsample_bilinear2d", 2),
    ("upsample_trilinear3d", 3),
    ("upsample_bicubic2d", 2),
):
    ARRAY_OPS[f"aten::{_name}.vec"] = _resizing(f"aten::{_name}", _ndim)
