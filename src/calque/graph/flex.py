"""`torch.nn.attention.flex_attention` in a compiled graph, forward and backward.

PyTorch's operator takes two subgraphs for one score at (batch, head, query, key): `score_mod`
changes it, and `mask_mod` says whether it is kept. Both are vectorized with `jax.vmap`; the full
scores are computed, at least in float32, and XLA fuses the operations between the two products. The
backward uses PyTorch's own graph for the gradient of one score, so that `detach` and the like keep
their meaning.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from calque.graph.array_graph import ArrayNodes
from calque.graph.higher_order import higher_order
from calque.ops.create.in_graphs import ARRAY_OPS

_LN2 = math.log(2)  # PyTorch's kernels return logarithms to the base 2


def _over_scores(function: Callable[..., Any], with_scores: int, out_axes: object) -> Any:
    """Returns a function of scores and one position, vectorized over all positions (batch, head,
    query, key).

    Args:
        function: takes `with_scores` scores, then b, h, q, k.
        with_scores: how many of its arguments are scores.
        out_axes: 0 for results with the shape of the scores, None for results summed over them.
    """
    for place in (3, 2, 1, 0):
        positions = [0 if p == place else None for p in range(4)]
        function = jax.vmap(function, (*(0,) * with_scores, *positions), out_axes)
    return function


def _positions(shape: Sequence[int]) -> list[Array]:
    return [jnp.arange(n, dtype=jnp.int32) for n in shape]


@custom_vmap
def _summed(value: Array) -> Array:
    """Returns a value summed over every axis along which it is vectorized."""
    return value


@_summed.def_vmap
def _sum(size: int, batched: Any, value: Array) -> tuple[Array, bool]:
    (is_batched,) = batched
    return _summed(value.sum(0) if is_batched else value * size), False


def _scatter(shape: Sequence[int], indices: Sequence[Array], vals: Array) -> Array:
    """Adds values to zeros at indices; vectorized calls share the zeros.

    This is the gradient of `bias[h, q - k]`; a separate table for each score would not fit into
    memory. Without indices (a number that scales every score) it is the sum.
    """
    if not indices:
        return _summed(jnp.broadcast_to(vals, tuple(shape)))

    @custom_vmap
    def add(places: list[Array], vals: Array) -> Array:
        places = [jnp.where(p < 0, p + n, p) for p, n in zip(places, shape, strict=False)]
        return jnp.zeros(tuple(shape), vals.dtype).at[tuple(places)].add(vals)

    @add.def_vmap
    def _add(size: int, batched: Any, places: list[Array], vals: Array) -> tuple[Array, bool]:
        def all_of(value: Array, is_batched: bool) -> Array:
            return value if is_batched else jnp.broadcast_to(value, (size, *value.shape))

        where = [all_of(p, b) for p, b in zip(places, batched[0], strict=True)]
        return add(where, all_of(vals, batched[1])), False

    return add(list(indices), vals)


ARRAY_OPS["flex_lib::zeros_and_scatter"] = _scatter


def _wide(array: Array) -> Array:
    return array if array.dtype == jnp.float64 else array.astype(jnp.float32)


def _scores(query: Array, key: Array, scale: float) -> Array:
    """Returns the scaled products; shared keys have fewer heads than queries, or a batch of one."""
    groups = query.shape[1] // key.shape[1]
    key = jnp.repeat(_wide(key), groups, axis=1)
    return jnp.einsum("bhqe,bhke->bhqk", _wide(query), _whole(key, query)) * scale


def _whole(array: Array, query: Array) -> Array:
    return jnp.broadcast_to(array, (query.shape[0], *array.shape[1:]))


def _attend(scores: Array, value: Array, query: Array) -> tuple[Array, Array]:
    """Returns the attention and the logarithm of the sum; fully masked rows give zeros."""
    masked = jnp.isneginf(scores)
    top = jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
    top = jnp.where(jnp.isneginf(top), 0, top)
    parts = jnp.where(masked, 0, jnp.exp(jnp.where(masked, 0, scores - top)))
    total = parts.sum(-1, keepdims=True)
    empty = total == 0
    total = jnp.where(empty, 1, total)
    values = _whole(jnp.repeat(value, query.shape[1] // value.shape[1], axis=1), query)
    out = (parts / total).astype(query.dtype) @ values.astype(query.dtype)
    logsumexp = jnp.where(empty, -jnp.inf, jnp.log(total) + top)
    return out, logsumexp[..., 0]


def _kept(block_mask: Sequence[Any], captured: Sequence[Any], shape: Sequence[int]) -> Array:
    """Returns a boolean array that is true where the mask keeps a score."""
    mask = ArrayNodes.function_of(block_mask[-1])
    keeps = _over_scores(lambda *position: mask(*position, *captured)[0], 0, 0)
    return jnp.broadcast_to(keeps(*_positions(shape)), tuple(shape))


@higher_order("flex_attention")
def _forward(
    of: object,
    query: Array,
    key: Array,
    value: Array,
    score_mod: object,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    captured: Sequence[Any] = (),
    mask_captured: Sequence[Any] = (),
) -> tuple[Array, ...]:
    scores = _scores(query, key, scale)
    changed = _changed(scores, score_mod, captured)
    masked = jnp.where(_kept(block_mask, mask_captured, scores.shape), changed, -jnp.inf)
    out, logsumexp = _attend(masked, value, query)
    return out, logsumexp / _LN2, masked.max(-1) / _LN2


def _changed(scores: Array, score_mod: Any, captured: Sequence[Any]) -> Array:
    change = ArrayNodes.function_of(score_mod)
    every = _over_scores(lambda *score: change(*score, *captured)[0], 1, 0)
    return every(scores, *_positions(scores.shape)).astype(scores.dtype)


@higher_order("flex_attention_backward")
def _backward(
    of: object,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    grad_out: Array | None,
    grad_logsumexp: Array | None,
    score_mod: object,
    joint: Any,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    captured: Sequence[Any] = (),
    mask_captured: Sequence[Any] = (),
) -> tuple[Any, ...]:
    scores, to_inputs = jax.vjp(lambda q, k: _scores(q, k, scale), query, key)
    kept = _kept(block_mask, mask_captured, scores.shape)
    masked = jnp.where(kept, _changed(scores, score_mod, captured), -jnp.inf)
    found, to_scores = jax.vjp(lambda s, v: _attend(s, v, query), masked, value)
    given = (grad_out, None if grad_logsumexp is None else grad_logsumexp / _LN2)
    cotangents = tuple(
        jnp.zeros_like(one) if g is None else g.astype(one.dtype)
        for one, g in zip(found, given, strict=True)
    )
    grad_masked, grad_value = to_scores(cotangents)
    gradient = ArrayNodes.function_of(joint)

    def of_score(score: Array, grad: Array, *position: Array) -> tuple[Any, ...]:
        found = gradient(score, *position, grad, *captured)
        return found[0], [None if g is None else _summed(g) for g in found[5:]]

    every = _over_scores(of_score, 2, (0, None))
    grad_scores, grad_captured = every(
        scores, jnp.where(kept, grad_masked, 0), *_positions(scores.shape)
    )
    grad_query, grad_key = to_inputs(jnp.where(kept, grad_scores, 0).astype(scores.dtype))
    return grad_query, grad_key, grad_value, tuple(grad_captured)
