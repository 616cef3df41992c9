"""Scaled dot-product attention, and its gradient.

The gradient of `softmax_attention` is `jax.vjp` of the same expression, so that within one program
XLA shares the probabilities with the forward pass. Run eagerly, the gradient computes them again,
and nothing of size queries times keys is kept in between. On NVIDIA GPUs, operands of half
precision are left to cuDNN (see `flash_attention`).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.nn import flash_attention, softmax_attention
from calque.ops.table.linear_resample import widened
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument


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
    if flash_attention.applies(q, k, v, bias, dropout_p):
        return flash_attention.attend(q, k, v, is_causal, scale)
    return softmax_attention.attend(q, k, v, bias, is_causal, scale, key_data, dropout_p)


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

    It does not replace other calls that need a gradient than those of `is_flash`, because a single
    autograd node saves more for the backward pass: on a CPU, a step of 512 queries took 1.6 times
    as long (8 heads of 64).
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


def is_flash(
    query: TensorArgument,
    key: TensorArgument,
    value: TensorArgument,
    attn_mask: TensorArgument | None = None,
    dropout_p: float = 0.0,
    *_: Any,
) -> bool:
    """Returns True for calls of `is_one_rule` of which no array of queries times keys is kept."""
    return flash_attention.applies(query, key, value, attn_mask, dropout_p)


@op(
    "scaled_dot_product_attention",
    random=_drops,
    layout="attention",
    autocast="lower",
    without_gradient=is_one_rule,
    also_with_gradient=is_flash,
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
