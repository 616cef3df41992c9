"""Softmax, its logarithm and their gradients; half precision is computed in float32."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from calque.ops.table.facts import facts
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.promotion import BOOL, COMPLEX, INT, refuse
from calque.ops.table.registry import op


def _softmax_rule(function: Any) -> Any:
    def rule(self: Array, dim: int, half_to_float: bool) -> Array:
        refuse("softmax_lastdim_kernel_impl", self.dtype, BOOL, INT, COMPLEX)
        wide = self.astype(jnp.float32) if self.dtype.itemsize == 2 else self
        result = function(wide, wrap_dim(dim, self.ndim)) if self.ndim else function(wide[None], 0)
        return result.reshape(self.shape).astype(wide.dtype if half_to_float else self.dtype)

    return rule


def _softmax_condition(self: Any, dim: int, *_: Any, **__: Any) -> None:
    wrap_dim(dim, self.ndim)


op("_softmax", writes=("exact_dtype", "computes_first"), condition=_softmax_condition)(
    _softmax_rule(lambda x, dim: jax.nn.softmax(x, axis=dim))
)
op("_log_softmax", writes=("exact_dtype", "computes_first"), condition=_softmax_condition)(
    _softmax_rule(lambda x, dim: jax.nn.log_softmax(x, axis=dim))
)


def _sum_over(x: Array, dim: int) -> Array:
    return jnp.sum(x, axis=wrap_dim(dim, x.ndim), keepdims=True) if x.ndim else x


@op("_softmax_backward_data")
def softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    wide = jnp.promote_types(output.dtype, jnp.float32)
    grad, y = grad_output.astype(wide), output.astype(wide)
    return (y * (grad - _sum_over(grad * y, dim))).astype(input_dtype)


@op("_log_softmax_backward_data")
def log_softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    wide = jnp.promote_types(output.dtype, jnp.float32)
    grad, y = grad_output.astype(wide), output.astype(wide)
    return (grad - jnp.exp(y) * _sum_over(grad, dim)).astype(input_dtype)


@op("_safe_softmax")
def safe_softmax(self: Array, dim: int, dtype: Any = None) -> Array:
    """Returns the softmax, with zeros for rows that are all -inf."""
    x = self if dtype is None else self.astype(dtype)
    dim = wrap_dim(dim, x.ndim)
    if not x.ndim:
        return safe_softmax(x.reshape(1), 0).reshape(())
    empty = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    result = jax.nn.softmax(
        jnp.where(empty, 0, x).astype(jnp.promote_types(x.dtype, "float32")), dim
    )
    return jnp.where(empty, 0, result).astype(x.dtype)


facts("log_softmax.int softmax.int", autocast="float32")
