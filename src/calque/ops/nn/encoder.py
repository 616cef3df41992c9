"""The fused operators that torch.nn's attention and encoder layers use without gradients.

Masks are boolean, true where a key is hidden; a row with every key hidden is NaN, as in PyTorch.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.nn.row_normalization import native_layer_norm
from calque.ops.pointwise.activation import gelu, relu
from calque.ops.table.linear_resample import widened
from calque.ops.table.registry import op


def _linear(x: Array, weight: Array, bias: Array | None) -> Array:
    out = jnp.einsum("...i,oi->...o", x, weight)
    return out if bias is None else out + bias


def _hidden(mask: Array, kind: int | None, scores: Array) -> Array:
    """Returns the mask in a shape that broadcasts to (batch, heads, queries, keys).

    Its kind is 0 for (queries, keys), 1 for (batch, keys), and 2 for all four.
    """
    batch, _, queries, keys = scores.shape
    shapes = {0: (1, 1, queries, keys), 1: (batch, 1, 1, keys)}
    wanted = mask.shape if kind == 2 else shapes.get(kind or 0)
    if wanted is None or math.prod(wanted) != mask.size:
        raise RuntimeError(f"a mask of shape {list(mask.shape)} does not fit mask_type {kind}")
    return mask.reshape(wanted).astype(np.bool_)


@op("_masked_softmax")
def masked_softmax(
    self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None
) -> Array:
    if mask.dtype != np.bool_:
        raise RuntimeError("Mask should be a boolean tensor")
    hidden = mask if mask.shape == self.shape else _hidden(mask, mask_type, self)
    scores = jnp.where(hidden, -np.inf, widened(self))
    return jax.nn.softmax(scores, axis=-1 if dim is None else dim).astype(self.dtype)


def _attend(
    q: Array, k: Array, v: Array, heads: int, mask: Array | None, mask_type: int | None
) -> tuple[Array, Array]:
    """Returns the concatenated outputs of the heads, and the weights (batch, heads, queries,
    keys)."""
    if q.ndim != 3:
        raise RuntimeError(f"expected 3-D `query`, got {q.ndim}-D tensor")
    if q.shape[-1] % heads:
        raise RuntimeError(f"embed_dim {q.shape[-1]} does not divide into {heads} heads")
    q, k, v = (x.reshape(*x.shape[:2], heads, x.shape[2] // heads) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.asarray(math.sqrt(q.shape[-1]), q.dtype)
    if mask is not None:
        scores = jnp.where(_hidden(mask, mask_type, scores), -np.inf, scores)
    weights = jax.nn.softmax(widened(scores), axis=-1).astype(v.dtype)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return out.reshape(*out.shape[:2], heads * out.shape[3]), weights


@op("_native_multi_head_attention")
def native_multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    mask: Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Array, Array | None]:
    packed = zip(jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3), strict=True)
    q, k, v = (_linear(x, w, b) for x, (w, b) in zip((query, key, value), packed, strict=True))
    heads, weights = _attend(q, k, v, num_head, mask, mask_type)
    out = _linear(heads, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(axis=1) if average_attn_weights else weights


@op("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Array,
    norm_bias_1: Array,
    norm_weight_2: Array,
    norm_bias_2: Array,
    ffn_weight_1: Array,
    ffn_bias_1: Array,
    ffn_weight_2: Array,
    ffn_bias_2: Array,
    mask: Array | None = None,
    mask_type: int | None = None,
) -> Array:
    def first(x: Array) -> Array:
        return native_layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)[0]

    def second(x: Array) -> Array:
        return native_layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)[0]

    def attention(x: Array) -> Array:
        q, k, v = jnp.split(_linear(x, qkv_weight, qkv_bias), 3, axis=-1)
        return _linear(_attend(q, k, v, num_heads, mask, mask_type)[0], proj_weight, proj_bias)

    def feed_forward(x: Array) -> Array:
        inner: Any = _linear(x, ffn_weight_1, ffn_bias_1)
        return _linear(gelu(inner) if use_gelu else relu(inner), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(first(src))
        return x + feed_forward(second(x))
    x = first(src + attention(src))
    return second(x + feed_forward(x))
