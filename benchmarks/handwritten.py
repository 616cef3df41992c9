"""The models of `models.py` as one writes them in JAX: pure functions, optax, one jitted step.

Parameters are a dictionary under PyTorch's names, so that both sides start from equal values.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from jax import Array, lax
from torch import nn

Arrays = dict[str, Array]
Apply = Callable[[Arrays, Arrays, Array], tuple[Array, Arrays]]
State = tuple[Arrays, Arrays, Any]

Transformation = optax.GradientTransformation

OPTIMIZERS: dict[str, Transformation] = {
    "SGD": optax.sgd(0.01, momentum=0.9),
    "AdamW": optax.adamw(1e-3, weight_decay=0.01),
}


def linear(p: Arrays, name: str, x: Array) -> Array:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def layer_norm(p: Arrays, name: str, x: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    normal = (x - mean) * lax.rsqrt(variance + 1e-5)
    return normal * p[f"{name}.weight"] + p[f"{name}.bias"]


def conv(p: Arrays, name: str, x: Array, stride: int, padding: int) -> Array:
    return lax.conv_general_dilated(
        x,
        p[f"{name}.weight"],
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )


def batch_norm(p: Arrays, b: Arrays, new: Arrays, name: str, x: Array) -> Array:
    mean = x.mean((0, 2, 3))
    variance = x.var((0, 2, 3))
    count = x.size // x.shape[1]
    unbiased = variance * (count / (count - 1))
    new[f"{name}.running_mean"] = 0.9 * b[f"{name}.running_mean"] + 0.1 * mean
    new[f"{name}.running_var"] = 0.9 * b[f"{name}.running_var"] + 0.1 * unbiased
    new[f"{name}.num_batches_tracked"] = b[f"{name}.num_batches_tracked"] + 1
    scale = p[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
    shift = p[f"{name}.bias"] - mean * scale
    return x * scale[:, None, None] + shift[:, None, None]


def mlp(p: Arrays, b: Arrays, x: Array) -> tuple[Array, Arrays]:
    *hidden, last = sorted(int(name.split(".")[1]) for name in p if name.endswith(".weight"))
    for i in hidden:
        x = jax.nn.relu(linear(p, f"layers.{i}", x))
    return linear(p, f"layers.{last}", x), b


def resnet(p: Arrays, b: Arrays, x: Array) -> tuple[Array, Arrays]:
    new: Arrays = {}
    x = jax.nn.relu(batch_norm(p, b, new, "norm", conv(p, "stem", x, 1, 1)))
    for i in range(count(p, "blocks")):
        name = f"blocks.{i}"
        stride = 2 if f"{name}.project.weight" in p else 1
        y = conv(p, f"{name}.conv1", x, stride, 1)
        y = jax.nn.relu(batch_norm(p, b, new, f"{name}.norm1", y))
        y = batch_norm(p, b, new, f"{name}.norm2", conv(p, f"{name}.conv2", y, 1, 1))
        if stride != 1:
            x = conv(p, f"{name}.project", x, stride, 0)
            x = batch_norm(p, b, new, f"{name}.norm3", x)
        x = jax.nn.relu(x + y)
    return linear(p, "head", x.mean((2, 3))), new


def transformer_layer(p: Arrays, name: str, x: Array, heads: int, causal: bool) -> Array:
    batch, length, width = x.shape
    qkv = linear(p, f"{name}.qkv", layer_norm(p, f"{name}.norm1", x))
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, heads, width // heads), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
    if causal:
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
    attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    x = x + linear(p, f"{name}.out", attended.reshape(x.shape))
    hidden = linear(p, f"{name}.up", layer_norm(p, f"{name}.norm2", x))
    return x + linear(p, f"{name}.down", jax.nn.gelu(hidden, approximate=False))


def encoder(p: Arrays, b: Arrays, x: Array) -> tuple[Array, Arrays]:
    for i in range(count(p, "layers")):
        x = transformer_layer(p, f"layers.{i}", x, 4, False)
    return linear(p, "head", x.mean(1)), b


def gpt(p: Arrays, b: Arrays, tokens: Array) -> tuple[Array, Arrays]:
    x = p["tokens.weight"][tokens] + p["positions"][: tokens.shape[1]]
    for i in range(count(p, "layers")):
        x = transformer_layer(p, f"layers.{i}", x, 4, True)
    return _gpt_head(p, x), b


def gpt_by_layer(p: Arrays, b: Arrays, tokens: Array) -> tuple[Array, Arrays]:
    """As `gpt`; its layer is a jitted function, which JAX traces and lowers once."""

    @jax.jit
    def layer(own: Arrays, x: Array) -> Array:
        return transformer_layer(own, "layer", x, 4, True)

    x = p["tokens.weight"][tokens] + p["positions"][: tokens.shape[1]]
    for i in range(count(p, "layers")):
        prefix = f"layers.{i}."
        own = {n.replace(prefix, "layer."): w for n, w in p.items() if n.startswith(prefix)}
        x = layer(own, x)
    return _gpt_head(p, x), b


def _gpt_head(p: Arrays, x: Array) -> Array:
    logits = layer_norm(p, "norm", x) @ p["tokens.weight"].T
    return logits.reshape(-1, logits.shape[-1])


def vit(p: Arrays, b: Arrays, x: Array) -> tuple[Array, Arrays]:
    weight = p["patches.weight"]
    x = conv(p, "patches", x, weight.shape[-1], 0) + p["patches.bias"][:, None, None]
    x = jnp.swapaxes(x.reshape(*x.shape[:2], -1), 1, 2) + p["positions"]
    for i in range(count(p, "layers")):
        x = transformer_layer(p, f"layers.{i}", x, 3, False)
    return linear(p, "head", layer_norm(p, "norm", x).mean(1)), b


def bert(p: Arrays, b: Arrays, tokens: Array) -> tuple[Array, Arrays]:
    x = p["tokens.weight"][tokens] + p["positions"][: tokens.shape[1]]
    x = layer_norm(p, "norm", x)
    for i in range(count(p, "layers")):
        x = transformer_layer(p, f"layers.{i}", x, 4, False)
    logits = linear(p, "head", x)
    return logits.reshape(-1, logits.shape[-1]), b


def count(p: Arrays, prefix: str) -> int:
    """The number of modules in a list of them."""
    return len({name.split(".")[1] for name in p if name.startswith(f"{prefix}.")})


TWINS: dict[str, Apply] = {
    "mlp": mlp,
    "resnet": resnet,
    "encoder": encoder,
    "gpt": gpt,
    "gpt_by_layer": gpt_by_layer,
    "vit": vit,
    "bert": bert,
}


def array(tensor: torch.Tensor) -> Array:
    """A copy of a CPU tensor; indices become int32, as JAX has them by default."""
    return jnp.array(tensor.detach().numpy())


def initial_state(model: nn.Module, optimizer: str | Transformation) -> State:
    """Parameters, buffers and optimizer state from a PyTorch model on the CPU."""
    parameters = {name: array(p) for name, p in model.named_parameters()}
    buffers = {name: array(b) for name, b in model.named_buffers()}
    return parameters, buffers, _transformation(optimizer).init(parameters)


def _transformation(optimizer: str | Transformation) -> Transformation:
    return OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer


def make_step(
    apply: Apply, optimizer: str | Transformation
) -> Callable[[State, Array, Array], tuple[State, Array]]:
    """One training step, not yet jitted."""
    optax_update = _transformation(optimizer).update

    def loss_of(p: Arrays, b: Arrays, x: Array, y: Array) -> tuple[Array, Arrays]:
        logits, buffers = apply(p, b, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), buffers

    def step(state: State, x: Array, y: Array) -> tuple[State, Array]:
        parameters, buffers, moments = state
        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            parameters, buffers, x, y
        )
        updates, moments = optax_update(gradients, moments, parameters)
        updated: Any = optax.apply_updates(parameters, updates)
        return (updated, buffers, moments), loss

    return step


class Trainer:
    """Holds the state that the jitted step donates and returns."""

    def __init__(self, apply: Apply, model: nn.Module, optimizer: str | Transformation) -> None:
        self.state = initial_state(model, optimizer)
        self.step = jax.jit(make_step(apply, optimizer), donate_argnums=0)

    def __call__(self, x: Array, y: Array) -> Array:
        self.state, loss = self.step(self.state, x, y)
        return loss
