"""The models of `accelerator.py` as one writes them in JAX.

Parameters and the residual stream are float32; products, convolutions and attention compute in the
dtype that is given. Attention of half precision is cuDNN's. Each layer of a transformer is a jitted
function, which is traced once.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from torch import nn

from benchmarks import handwritten
from benchmarks.handwritten import Arrays

_IMAGES = ("NHWC", "HWIO", "NHWC")
_CAUSAL = {"gpt": True, "vit": False, "bert": False}


def linear(p: Arrays, name: str, x: Array, dtype: jnp.dtype) -> Array:
    y = x.astype(dtype) @ p[f"{name}.weight"].astype(dtype).T
    return y + p[f"{name}.bias"].astype(dtype) if f"{name}.bias" in p else y


def conv(p: Arrays, name: str, x: Array, stride: int, padding: int, dtype: jnp.dtype) -> Array:
    weight = p[f"{name}.weight"].astype(dtype).transpose(2, 3, 1, 0)
    around = [(padding, padding)] * 2
    return lax.conv_general_dilated(
        x.astype(dtype), weight, (stride, stride), around, dimension_numbers=_IMAGES
    )


def batch_norm(p: Arrays, b: Arrays, new: Arrays, name: str, x: Array) -> Array:
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = (wide**2).mean((0, 1, 2)) - mean**2
    count = x.size // x.shape[-1]
    unbiased = variance * (count / (count - 1))
    new[f"{name}.running_mean"] = 0.9 * b[f"{name}.running_mean"] + 0.1 * mean
    new[f"{name}.running_var"] = 0.9 * b[f"{name}.running_var"] + 0.1 * unbiased
    new[f"{name}.num_batches_tracked"] = b[f"{name}.num_batches_tracked"] + 1
    scale = p[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
    return (wide * scale + (p[f"{name}.bias"] - mean * scale)).astype(x.dtype)


def resnet(p: Arrays, b: Arrays, x: Array, dtype: jnp.dtype) -> tuple[Array, Arrays]:
    new: Arrays = {}
    x = conv(p, "stem", x.transpose(0, 2, 3, 1), 2, 3, dtype)
    x = jax.nn.relu(batch_norm(p, b, new, "norm", x))
    x = lax.reduce_window(
        x,
        -jnp.inf,
        lax.max,
        (1, 3, 3, 1),
        (1, 2, 2, 1),
        [(0, 0), (1, 1), (1, 1), (0, 0)],
    )
    width = 0
    for i in range(handwritten.count(p, "blocks")):
        name = f"blocks.{i}"
        own = p[f"{name}.conv1.weight"].shape[0]
        stride = 2 if width and own != width else 1
        width = own
        y = conv(p, f"{name}.conv1", x, 1, 0, dtype)
        y = jax.nn.relu(batch_norm(p, b, new, f"{name}.norm1", y))
        y = conv(p, f"{name}.conv2", y, stride, 1, dtype)
        y = jax.nn.relu(batch_norm(p, b, new, f"{name}.norm2", y))
        y = batch_norm(p, b, new, f"{name}.norm3", conv(p, f"{name}.conv3", y, 1, 0, dtype))
        if f"{name}.project.weight" in p:
            x = conv(p, f"{name}.project", x, stride, 0, dtype)
            x = batch_norm(p, b, new, f"{name}.norm4", x)
        x = jax.nn.relu(x + y)
    return linear(p, "head", x.mean((1, 2)), dtype), new


def attention(qkv: Array, heads: int, causal: bool) -> Array:
    """The attention of packed (batch, length, 3 * width) queries, keys and values."""
    batch, length, packed = qkv.shape
    width = packed // 3 // heads
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, heads, width), 2, 0)
    if qkv.dtype == jnp.bfloat16 and jax.default_backend() == "gpu":
        out = jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")
    else:
        out = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    return out.reshape(batch, length, heads * width)


@partial(jax.jit, static_argnames=("heads", "causal", "dtype"))
def layer(p: Arrays, x: Array, heads: int, causal: bool, dtype: jnp.dtype) -> Array:
    """A pre-norm transformer layer."""
    qkv = linear(p, "qkv", handwritten.layer_norm(p, "norm1", x), dtype)
    x = x + linear(p, "out", attention(qkv, heads, causal), dtype)
    hidden = linear(p, "up", handwritten.layer_norm(p, "norm2", x), dtype)
    return x + linear(p, "down", jax.nn.gelu(hidden, approximate=False), dtype)


def transformer(
    p: Arrays, b: Arrays, x: Array, dtype: jnp.dtype, kind: str, heads: int
) -> tuple[Array, Arrays]:
    if kind == "vit":
        weight = p["patches.weight"]
        x = conv(p, "patches", x.transpose(0, 2, 3, 1), weight.shape[-1], 0, dtype)
        x = (x + p["patches.bias"].astype(dtype)).reshape(x.shape[0], -1, x.shape[-1])
        x = x + p["positions"]
    else:
        x = p["tokens.weight"][x] + p["positions"][: x.shape[1]]
    if kind == "bert":
        x = handwritten.layer_norm(p, "norm", x)
    for i in range(handwritten.count(p, "layers")):
        prefix = f"layers.{i}."
        own = {n.removeprefix(prefix): w for n, w in p.items() if n.startswith(prefix)}
        x = layer(own, x, heads, _CAUSAL[kind], dtype)
    if kind == "vit":
        return linear(p, "head", handwritten.layer_norm(p, "norm", x).mean(1), dtype), b
    if kind == "gpt":
        x = handwritten.layer_norm(p, "norm", x).astype(dtype) @ p["tokens.weight"].astype(dtype).T
    else:
        x = linear(p, "head", x, dtype)
    return x.reshape(-1, x.shape[-1]), b


_KINDS = {"ViT-B/16": "vit", "GPT-2": "gpt", "BERT-base": "bert"}
_KINDS |= {"small ViT": "vit", "small GPT": "gpt", "small BERT": "bert"}


def trainer(case: str, model: nn.Module, dtype: jnp.dtype) -> handwritten.Trainer:
    """The jitted step, with the state it donates."""

    def apply(p: Arrays, b: Arrays, x: Array) -> tuple[Array, Arrays]:
        if case in _KINDS:
            heads = 4 if case.startswith("small") else 12
            logits, buffers = transformer(p, b, x, dtype, _KINDS[case], heads)
        else:
            logits, buffers = resnet(p, b, x, dtype)
        return logits.astype(jnp.float32), buffers

    optimizer = (
        optax.adamw(1e-4, weight_decay=0.01) if case in _KINDS else optax.sgd(0.01, momentum=0.9)
    )
    return handwritten.Trainer(apply, model, optimizer)
