"""Stateless aggregators: means, optionally with clipping, noise, rounding or masking."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.errors import with_user_frames
from calque.federated.decorators import local
from calque.federated.intrinsics import (
    federated_map,
    federated_mean,
    federated_secure_sum,
    federated_sum,
    federated_value,
)
from calque.federated.learning.aggregators.kinds import Aggregator, as_private_as
from calque.federated.learning.models import squared
from calque.federated.tracing import member_type, type_of
from calque.federated.types import CLIENTS, to_shapes


def mean() -> Aggregator:
    """Returns the weighted mean."""
    return lambda value, weight, key: federated_mean(value, weight)


@with_user_frames
def clipped(norm: float, inner: Aggregator | None = None) -> Aggregator:
    """Clips each client's values to a norm over all its tensors; then applies `inner`.

    Args:
        norm: the largest Euclidean norm.
        inner: the aggregator of the clipped values; `mean()` by default.
    """
    joined, clip = inner or mean(), _clip(norm)
    return as_private_as(joined, lambda value, *rest: joined(_on_each(value, clip), *rest))


@with_user_frames
def dp_gaussian(noise_multiplier: float, norm: float) -> Aggregator:
    """Returns the unweighted mean of clipped values with Gaussian noise: DP-FedAvg (McMahan et al.
    2018).

    The sum of the clients' values, each of norm at most `norm`, gets noise of standard deviation
    `noise_multiplier * norm`, and is divided by the number of the round's clients. Clients without
    examples are counted, because their number must stay private; they add zeros to the sum.
    `learning.epsilon` computes the resulting privacy of the parameters over a number of rounds. The
    metrics have no noise. Buffers that clients change, such as BatchNorm's, would have none either,
    and are refused.

    Args:
        noise_multiplier: the noise, in units of the norm.
        norm: the largest Euclidean norm.
    """
    if not noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier must be at least 0, not {noise_multiplier}")
    clip = _clip(norm)

    def noisy(total: object, count: object, key: object) -> Any:
        return with_noise(total, noise_multiplier * norm, count, key)

    def joined(value: Any, weight: Any, key: Any) -> Any:
        total = federated_sum(_on_each(value, clip))
        count = federated_sum(federated_value(1.0, CLIENTS))
        parts = (total, count, key)
        return federated_map(_local(noisy, *parts), parts)

    joined.is_private = True  # type: ignore[attr-defined]
    return joined


@with_user_frames
def quantized(bits: int, inner: Aggregator | None = None) -> Aggregator:
    """Rounds each client's values to `2**bits` levels of their range; then applies `inner`.

    Args:
        bits: the number of bits, from 1 to 16.
        inner: the aggregator of the rounded values; `mean()` by default.
    """
    if not 1 <= bits <= 16:
        raise ValueError(f"bits must be between 1 and 16, not {bits}")
    joined = inner or mean()

    def rounded(leaf: Any) -> Any:
        exact = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        least, most = exact.min(), exact.max()
        step = jnp.where(most > least, (most - least) / (2**bits - 1), 1)
        return (least + jnp.round((exact - least) / step) * step).astype(leaf.dtype)

    def of_rounded(value: object, weight: object, key: object) -> Any:
        parts = _on_each(value, lambda tree: jax.tree.map(by_parts(rounded), tree))
        return joined(parts, weight, key)

    return as_private_as(joined, of_rounded)


@with_user_frames
def secure(bound: float, bits: int = 16) -> Aggregator:
    """Returns the unweighted mean, computed by `federated_secure_sum` of values rounded to
    integers.

    Clients without examples are ignored.

    Args:
        bound: the values are clipped to `[-bound, bound]`.
        bits: the number of bits of a rounded number. More bits are more precise, but leave room
            for fewer clients: `clients * 2**bits` must stay below `2**31`.
    """
    if not bound > 0:
        raise ValueError(f"bound must be positive, not {bound}")
    if not 1 <= bits <= 31:
        raise ValueError(f"bits must be between 1 and 31, not {bits}")
    levels = 2**bits - 1

    def rounded(leaf: Any) -> Any:
        if jnp.iscomplexobj(leaf):
            leaf = jnp.stack([leaf.real, leaf.imag])
        leaf = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        places = jnp.round((jnp.clip(leaf, -bound, bound) + bound) / (2 * bound) * levels)
        return jnp.minimum(places.astype(jnp.int32), levels)  # float32 may have rounded up

    def as_integers(tree: object, weight: Any) -> Any:
        present = weight > 0
        return {
            "total": jax.tree.map(lambda leaf: jnp.where(present, rounded(leaf), 0), tree),
            "present": present.astype(jnp.float32),
        }

    def number(total: Any, count: Any, dtype: Any) -> Any:
        mean = total / count * np.float32(2 * bound / levels) - np.float32(bound)
        whole = jax.lax.complex(*mean) if jnp.issubdtype(dtype, jnp.complexfloating) else mean
        return whole.astype(dtype)

    def joined(value: Any, weight: Any, key: Any) -> Any:
        sent = federated_map(_local(as_integers, value, weight), (value, weight))
        parts = (federated_secure_sum(sent["total"], bits), federated_sum(sent["present"]))
        dtypes = [one.dtype for one in jax.tree.leaves(to_shapes(member_type(type_of(value))))]

        def back(total: object, count: object) -> Any:
            leaves, structure = jax.tree.flatten(total)
            pairs = zip(leaves, dtypes, strict=True)
            return jax.tree.unflatten(structure, [number(t, count, dtype) for t, dtype in pairs])

        return federated_map(_local(back, *parts), parts)

    return joined


# Helpers ------------------------------------------------------------------------------------------


def _on_each(value: object, function: Callable[[Any], Any]) -> Any:
    """Applies a JAX function to each client's values."""
    return federated_map(_local(function, value), value)


def _local(function: Callable[..., Any], *values: Any) -> Any:
    """Returns a JAX local function of the members of placed values."""
    return local(*(member_type(type_of(one)) for one in values), framework="jax")(function)


def _clip(norm: float) -> Callable[[Any], Any]:
    if not norm > 0:
        raise ValueError(f"norm must be positive, not {norm}")

    return lambda tree: clip_to(tree, norm)


def norm_of(tree: object) -> Any:
    """Returns the Euclidean norm over all tensors."""
    leaves = map(in_float32, jax.tree.leaves(tree))
    return jnp.sqrt(sum(jnp.sum(squared(leaf)) for leaf in leaves))


def in_float32(leaf: Any) -> Any:
    """Returns a tensor in float32, or complex64 if it is complex."""
    wide = jnp.complex64 if jnp.iscomplexobj(leaf) else jnp.float32
    return leaf.astype(wide)


def by_parts(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Applies a function to a tensor; for a complex tensor, to its real and imaginary parts."""

    def applied(leaf: Any) -> Any:
        if not jnp.iscomplexobj(leaf):
            return function(leaf)
        return jax.lax.complex(function(leaf.real), function(leaf.imag))

    return applied


def clip_to(tree: Any, norm: Any) -> Any:
    """Scales tensors down to a maximum norm."""
    scale = norm / jnp.maximum(norm_of(tree), norm)
    return jax.tree.map(lambda leaf: (leaf * scale).astype(leaf.dtype), tree)


def _normal(key: Any, leaf: Any) -> Any:
    """Returns normal random numbers; for complex ones, both parts have variance 1."""
    scale = np.sqrt(2) if jnp.iscomplexobj(leaf) else 1
    return jax.random.normal(key, leaf.shape, leaf.dtype) * scale


def with_noise(total: object, deviation: object, count: object, bits: Any) -> Any:
    """Returns the mean of `count` values, from their sum with Gaussian noise."""
    leaves, spec = jax.tree.flatten(total)
    keys = jax.random.split(jax.random.wrap_key_data(bits), len(leaves))
    noisy = [
        ((leaf + deviation * _normal(key, leaf)) / count).astype(leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(spec, noisy)
