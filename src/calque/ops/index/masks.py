"""Writes where a mask is set."""

import operator
from functools import reduce as fold
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.index.writes import replace_at
from calque.ops.table.facts import facts
from calque.ops.table.number_range import check_holds, no_room_in
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument


def _holds_value(self: TensorArgument, value: Any, **_: Any) -> None:
    check_holds(value, self.dtype)


@op("masked_fill.Scalar", "masked_fill.Tensor", layout="row_major", writes_in_place=("fills",))
def masked_fill(self: Array, mask: Array, value: Any) -> Array:
    if mask.dtype != jnp.bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if getattr(value, "ndim", 0):
        raise RuntimeError(
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    if jnp.iscomplexobj(value) and not (jnp.iscomplexobj(self) or self.dtype == jnp.bool_):
        raise RuntimeError(no_room_in(self.dtype))
    return jnp.where(mask, jnp.asarray(value).astype(self.dtype), self)


facts("masked_fill.Scalar", numbers=_holds_value)


def _enough(self: TensorArgument, mask: TensorArgument, source: TensorArgument, **_: Any) -> None:
    """Raise RuntimeError if a mask has more true elements than the source has elements."""
    values = mask.values() if mask.dtype == np.bool_ else None
    if values is None:
        return
    try:
        rest = np.broadcast_shapes(self.shape, mask.shape)
    except ValueError:  # the rule raises its own error
        return
    count = int(np.count_nonzero(values)) * (int(np.prod(rest)) // max(values.size, 1))
    if count > source.size:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes and source to have as "
            f"many elements as the mask has ones, but got {source.size} for {count}"
        )


def _masked_scatter_condition(self: Any, mask: Any, source: Any) -> None:
    if mask.dtype != jnp.bool_:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )


@op(
    "masked_scatter",
    writes_in_place=("computes_first",),
    values=_enough,
    condition=_masked_scatter_condition,
)
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    if self.dtype != source.dtype:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{self.dtype} and {source.dtype}"
        )
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    if source.size == 0 or 0 in shape:
        return jnp.broadcast_to(self, shape)
    mask = jnp.broadcast_to(mask, shape)
    order = jnp.cumsum(mask.reshape(-1), dtype=jnp.int32) - 1
    values = jnp.take(source.reshape(-1), order, mode="fill").reshape(shape)
    return jnp.where(mask, values, self)


@op("masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Any) -> Array:
    count = fold(operator.mul, sizes, 1)
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    order = jnp.cumsum(mask, dtype=jnp.int32) - 1
    where = jnp.where(mask, order, jnp.int32(count))
    flat = replace_at(jnp.zeros((count,), grad_output.dtype), where, grad_output.reshape(-1))
    return flat.reshape(tuple(sizes))
