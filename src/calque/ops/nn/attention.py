"""Scaled dot-product attention, and its gradient.

The plain softmax form is exact for every mask, and XLA fuses it. The gradient is `jax.vjp` of the
same expression, so that within one program XLA shares the probabilities with the forward pass. Run
eagerly, the gradient computes them again, and nothing of size queries times keys is kept in
between.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.helpers import maximum
from calque.ops.table.linear_resample import widened
from calque.ops.table.random_bits import wrapped
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument


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


def _check(q: Array, k: Array, v: Array) -> None:
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise RuntimeError("fused attention takes 4-D queries, keys and values")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise RuntimeError(
            "the heads of key and value must be equal and divide those of query, but got "
            f"{q.shape[1]}, {k.shape[1]} and {v.shape[1]}"
        )


def _drops(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *_: Any
) -> bool:
    return dropout_p > 0


def is_one_rule(
    query: TensorArgument,
    key: TensorArgument,
    value: TensorArgument,
    attn_mask: TensorArgument | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> bool:
    """Returns True if the rule should replace PyTorch's composition, which refuses some calls.

    It does not replace calls that need a gradient, because a single autograd node saves more for
    the backward pass: a step of 512 queries took 1.6 times as long (8 heads of 64).
    """
    operands = (query, key, value)
    axes = query.ndim
    if axes not in (2, 3, 4) or any(t.ndim != axes or not t.size for t in operands):
        return False
    if any(t.dtype != query.dtype or not t.is_float for t in operands):
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return False
    if not 0 <= dropout_p < 1:
        return False
    (*batch, heads), (*others, groups) = ([1, *t.shape[:-2]] for t in (query, key))
    if key.shape[:-2] != value.shape[:-2] or batch != others:
        return False
    if heads != groups and not (enable_gqa and axes == 4 and heads % groups == 0):
        return False
    return attn_mask is None or (not is_causal and _fits(attn_mask, query, key))


def _fits(mask: TensorArgument, query: TensorArgument, key: TensorArgument) -> bool:
    scores = (*query.shape[:-1], key.shape[-2])
    if mask.dtype not in (np.dtype(bool), query.dtype) or not 2 <= mask.ndim <= len(scores):
        return False
    pairs = zip(reversed(mask.shape), reversed(scores), strict=False)
    return all(n in (1, full) for n, full in pairs)


@op(
    "scaled_dot_product_attention",
    random=_drops,
    layout="attention",
    autocast="lower",
    without_gradient=is_one_rule,
)
def scaled_dot_product_attention(
    rng: Array | None,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Returns the attention of operands with two to four axes: the batch and the heads are
    optional."""
    missing = range(4 - query.ndim)
    q, k, v = (jnp.expand_dims(x, missing) for x in (query, key, value))
    _check(q, k, v)
    seed = None if rng is None else jax.random.key_data(rng)
    attended, _ = attend(q, k, v, attn_mask, is_causal, scale, seed, dropout_p)
    return attended.reshape(*query.shape[:-1], value.shape[-1])


@op("_scaled_dot_product_fused_attention_overrideable", random=True)
def fused_attention(
    rng: Array | None,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Returns the nine results of the operator; the seed is the key, so that the gradient drops the
    same elements.
    """
    _check(query, key, value)
    seed = None if rng is None or dropout_p == 0 else jax.random.key_data(rng)
    out, lse = attend(query, key, value, attn_bias, is_causal, scale, seed, dropout_p)
    kept = jnp.zeros((2,), np.uint32) if seed is None else seed
    none = jnp.zeros((), np.int64)
    return (
        out,
        lse,
        none,
        none,
        query.shape[2],
        key.shape[2],
        kept,
        none,
        jnp.zeros((0,), query.dtype),
    )


@op("_scaled_dot_product_fused_attention_overrideable_backward")
def fused_attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None,
    grad_input_mask: Any,
    out: Array,
    logsumexp: Array,
    cum_seq_q: Array | None,
    cum_seq_k: Array | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Array,
    philox_offset: Array | None,
    scale: float | None = None,
) -> tuple[Array | None, ...]:
    seed = philox_seed if dropout_p else None
    has_bias = attn_bias is not None and grad_input_mask[3]

    def forward(q: Array, k: Array, v: Array, bias: Array | None) -> Array:
        bias = bias if has_bias else attn_bias
        return attend(q, k, v, bias, is_causal, scale, seed, dropout_p)[0]

    _, pull = jax.vjp(forward, query, key, value, attn_bias if has_bias else None)
    grads = pull(grad_out)
    return tuple(g if m else None for g, m in zip(grads, grad_input_mask, strict=True))


@op("_scaled_dot_product_flash_attention_for_cpu", layout="attention_of_the_cpu")
def flash_attention_for_cpu(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Returns the result of the operator in graphs traced for the CPU, where it has no dropout."""
    _check(query, key, value)
    return attend(query, key, value, attn_mask, is_causal, scale, None, dropout_p)


@op("_scaled_dot_product_flash_attention_for_cpu_backward", layout="attention_of_the_cpu")
def flash_attention_for_cpu_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, ...]:
    def forward(q: Array, k: Array, v: Array) -> Array:
        return attend(q, k, v, attn_mask, is_causal, scale, None, dropout_p)[0]

    _, pull = jax.vjp(forward, query, key, value)
    return pull(grad_out)


@op("_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(
    qkv: Array, qkv_bias: Array, num_heads: int
) -> tuple[Array, Array, Array]:
    """Returns the queries (scaled), keys and values of a packed projection, split into heads."""
    batch, length, packed = qkv.shape
    head = packed // 3 // num_heads
    split = (qkv + qkv_bias).reshape(batch, length, 3, num_heads, head)
    q, k, v = (split[:, :, i].swapaxes(1, 2) for i in range(3))
    return (widened(q) / math.sqrt(head)).astype(q.dtype), k, v
