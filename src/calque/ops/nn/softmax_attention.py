"""Attention as matrix products and a softmax, which is exact for every mask, and XLA fuses it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.helpers import maximum
from calque.ops.table.random_bits import wrapped


def _scores(q: Array, k: Array, bias: Array | None, is_causal: bool, scale: float | None) -> Array:
    """Returns the masked scores (batch, heads of k, queries' heads per head of k, queries,
    keys)."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = np.promote_types(q.dtype, np.float32) if q.dtype.itemsize >= 4 else np.float32
    scores = jnp.einsum(
        "bhgqd,bhkd->bhgqk", q, k, preferred_element_type=np.dtype(wide)
    ) * np.asarray(scale, wide)
    if bias is not None:
        bias = jnp.broadcast_to(bias, (*bias.shape[:-4], *(1,) * (4 - bias.ndim), *bias.shape[-4:]))
        b, h, queries, keys = bias.shape
        groups = q.shape[2]
        bias = (
            bias.reshape(b, 1, 1, queries, keys)
            if h == 1
            else bias.reshape(b, h // groups, groups, queries, keys)
        )
        if bias.dtype == jnp.bool_:
            scores = jnp.where(bias, scores, -np.inf)
        else:
            scores = scores + bias.astype(wide)
    if is_causal:
        rows = lax.broadcasted_iota(np.int32, scores.shape[-2:], 0)
        columns = lax.broadcasted_iota(np.int32, scores.shape[-2:], 1)
        scores = jnp.where(rows >= columns, scores, np.asarray(-np.inf, wide))
    return scores


def attend(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    is_causal: bool,
    scale: float | None,
    key_data: Array | None,
    dropout_p: float,
) -> tuple[Array, Array]:
    """Returns the output and the log-sum-exp of the scores, (batch, heads, queries, ...) each."""
    batch, heads, queries, width = q.shape
    grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], queries, width)
    masked = bias is not None or is_causal
    scores = _scores(grouped, k, bias, is_causal, scale)
    top = lax.stop_gradient(maximum(scores, -1, keepdims=True, initial=-np.inf))
    if masked:
        # As in PyTorch, a row with every key masked gives zeros.
        top = jnp.where(top == -np.inf, 0, top)
    powers = jnp.exp(scores - top)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    divisor = jnp.where(total == 0, 1, total) if masked else total
    weights = powers / divisor
    if key_data is not None:
        kept = jax.random.bernoulli(wrapped(key_data), 1 - dropout_p, weights.shape)
        weights = jnp.where(kept, weights / (1 - dropout_p), 0) if dropout_p < 1 else weights * 0
    out = jnp.einsum("bhgqk,bhkd->bhgqd", weights.astype(v.dtype), v)
    lse = jnp.log(total) + top
    return out.reshape(batch, heads, queries, v.shape[3]), lse.reshape(batch, heads, queries)
