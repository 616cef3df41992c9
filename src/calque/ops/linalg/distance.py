"""Distances between the rows of two matrices, or of one."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.reduce.reduction import p_norm
from calque.ops.table.facts import facts, senseless
from calque.ops.table.helpers import maximum, wrap_dim
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    INT,
    RefusedDtype,
    is_integral,
    opmath,
    type_name,
)
from calque.ops.table.registry import op

_BY_PRODUCT, _NEVER = 1, 2
_MANY = 25


def _norm(gap: Array, p: float) -> Array:
    """Returns the p-norm over the last axis."""
    size = jnp.abs(gap)
    if p == 0:
        return jnp.sum(jnp.minimum(jnp.ceil(size), 1), axis=-1)  # NaN counts as NaN
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=-1))
    if p == np.inf:
        return maximum(size, -1, initial=0)
    return jnp.power(jnp.sum(jnp.power(size, p), axis=-1), 1 / p)


def _slope(gap: Array, dist: Array, p: float) -> Array:
    """Returns the derivative of the p-norm of each gap, zero where PyTorch takes it to be zero."""
    dist = dist[..., None]
    if p == 0:
        return jnp.zeros_like(gap)
    if p == 1:
        return jnp.sign(gap)
    if p == np.inf:
        # PyTorch's expression, for the sake of infinities and NaN; it is 1 if both are equal, and
        # the comparison shows that they must be computed alike (`program.compared_extrema`).
        size = jnp.abs(gap)
        slope = 1 - jnp.minimum(1, jnp.ceil(jnp.abs(size - dist)))
        return jnp.sign(gap) * jnp.where((size == dist) & jnp.isfinite(gap), 1, slope)
    safe = jnp.where(dist == 0, 1, dist)
    if p == 2:
        return jnp.where(dist == 0, 0, gap / safe)
    size = jnp.where(gap == 0, 1, jnp.abs(gap))
    slope = jnp.sign(gap) * jnp.power(size, p - 1) / jnp.power(safe, p - 1)
    return jnp.where((dist == 0) | ((gap == 0) if p < 1 else False), 0, slope)


def _check(p: float) -> None:
    if not p >= 0:  # nor NaN
        raise RuntimeError("cdist only supports non-negative p values")


@op(
    "_cdist_forward",
    refuses=senseless("cdist only supports floating-point dtypes", BOOL, INT, COMPLEX),
)
def cdist_forward(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    if x1.dtype != x2.dtype:
        raise RefusedDtype(
            f"expected scalar type {type_name(x1.dtype)} but found {type_name(x2.dtype)}"
        )
    _check(p)
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    many = x1.shape[-2] > _MANY or x2.shape[-2] > _MANY
    mode = compute_mode or 0
    if p == 2 and (mode == _BY_PRODUCT or (mode == 0 and many)):
        squares = [jnp.sum(x * x, axis=-1) for x in (x1, x2)]
        products = jnp.matmul(x1, jnp.swapaxes(x2, -1, -2))
        square = squares[0][..., :, None] + squares[1][..., None, :] - 2 * products
        return jnp.sqrt(jnp.maximum(square, 0))
    gap = x1[..., :, None, :] - x2[..., None, :, :]
    if p == np.inf:  # PyTorch's kernel passes over NaN, unlike that of pdist
        gap = jnp.where(jnp.isnan(gap), 0, gap)
    return _norm(gap, p)


@op("_cdist_backward")
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array) -> Array:
    gap = x1[..., :, None, :] - x2[..., None, :, :]
    out = jnp.sum(grad[..., None] * _slope(gap, cdist, p), axis=-2)
    return jnp.broadcast_to(out, (*grad.shape[:-2], *x1.shape[-2:]))


@op("_pdist_forward")
def pdist_forward(self: Array, p: float = 2.0) -> Array:
    first, second = np.triu_indices(self.shape[0], 1)
    return _norm(self[first] - self[second], p)


@op("_pdist_backward")
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    first, second = np.triu_indices(self.shape[0], 1)
    each = grad[:, None] * _slope(self[first] - self[second], pdist, p)
    return jnp.zeros_like(self).at[first].add(each).at[second].add(-each)


@op("renorm", static=("p", "maxnorm"), writes=("exact_dtype",), autocast="float32")
@opmath
def renorm(self: Array, p: Any, dim: int, maxnorm: Any) -> Array:
    """Scales down the slices along a dimension whose p-norm is above `maxnorm`."""
    if isinstance(p, complex) or isinstance(maxnorm, complex):
        raise RuntimeError("renorm: p and maxnorm must be real-valued")
    if not p > 0:  # nor NaN
        raise RuntimeError("renorm: non-positive-norm not supported")
    if not maxnorm >= 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if self.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {self.ndim} dimensions")
    if is_integral(self.dtype):
        raise RefusedDtype(
            "linalg.vector_norm: Expected a floating point or complex tensor as input. Got "
            f"{type_name(self.dtype)}"
        )
    rows = jnp.moveaxis(self, wrap_dim(dim, self.ndim), 0)
    norm = p_norm(rows, float(p), tuple(range(1, rows.ndim)), keepdim=True)
    factor = jnp.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1).astype(norm.dtype)
    return jnp.moveaxis(rows * factor, 0, wrap_dim(dim, self.ndim))


facts("cdist cosine_similarity pdist", autocast="float32")
