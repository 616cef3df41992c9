"""Batch, layer, group and RMS normalization with their gradients.

Statistics and sums are computed in float32 for half-precision inputs. The gradients use the saved
mean and reciprocal deviation in closed form, so that nothing of the forward pass is computed again.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.facts import no_kernel
from calque.ops.table.helpers import check_parameters, constant, greater
from calque.ops.table.linear_resample import widened
from calque.ops.table.promotion import BOOL, COMPLEX, INT
from calque.ops.table.registry import op

Grads = tuple[Array | None, Array | None, Array | None]


def _channels(values: Array | None, x: Array) -> Array | None:
    """Returns per-channel values in a shape that broadcasts against an input."""
    return None if values is None else widened(values).reshape(1, -1, *(1,) * (x.ndim - 2))


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    if jax.default_backend() != "cpu" and x.size:
        mean, variance = _moments_at_once(x, axes)
        return jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)
    mean = jnp.mean(x, axis=axes, keepdims=True)
    return jnp.squeeze(mean, axes), jnp.mean(jnp.square(x - mean), axis=axes)


def _moments_at_once(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns the mean and the variance, reading the input little more than once.

    On GPUs, reading it is what takes the time. The sums are those of differences from the mean of a
    sixteenth of the elements, which is at most four deviations from the mean of all. So what
    cancels in the variance is at most sixteen times as large as the variance itself.
    """
    some = lax.slice_in_dim(x, 0, -(-x.shape[axes[0]] // 16), axis=axes[0])
    shift = jnp.mean(some, axis=axes, keepdims=True)
    shift = jnp.where(jnp.isfinite(shift), shift, 0)
    moved = x - shift
    first = jnp.mean(moved, axis=axes, keepdims=True)
    second = jnp.mean(jnp.square(moved), axis=axes, keepdims=True)
    return first + shift, jnp.maximum(second - jnp.square(first), 0)


def _check_channels(x: Array, **values: Array | None) -> None:
    if x.ndim < 2:
        raise RuntimeError(f"expected at least 2D input (got {x.ndim}D input)")
    for name, value in values.items():
        if value is not None and value.size != x.shape[1]:
            raise RuntimeError(f"{name} should contain {x.shape[1]} elements not {value.size}")


def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Any,
    eps: float,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Returns the output, the mean and reciprocal deviation used, and the new running mean and
    variance."""
    _check_channels(x, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    wide = widened(x)
    axes = (0, *range(2, x.ndim))
    if training:
        mean, variance = _moments(wide, axes)
        count = x.size // x.shape[1] if x.shape[1] else 0
        if running_mean is not None:
            running_mean = _toward(running_mean, mean, momentum)
        if running_var is not None:
            running_var = _toward(running_var, variance * (count / greater(count - 1, 1)), momentum)
    else:
        if running_mean is None or running_var is None:
            raise RuntimeError("expected running_mean and running_var to be defined in eval mode")
        mean, variance = widened(running_mean), widened(running_var)
    invstd = lax.rsqrt(variance + constant(eps, variance.dtype))
    scale = invstd if weight is None else invstd * widened(weight)
    shift = -mean * scale if bias is None else widened(bias) - mean * scale
    out = (wide * _channels(scale, x) + _channels(shift, x)).astype(x.dtype)
    return out, mean, invstd, running_mean, running_var


def _toward(old: Array, new: Array, momentum: Any) -> Array:
    momentum = jnp.asarray(momentum).astype(new.dtype)
    return ((1 - momentum) * old.astype(new.dtype) + momentum * new).astype(old.dtype)


def _empty(x: Array) -> Array:
    return jnp.zeros((0,), widened(x).dtype)


def _batch_norm_condition(
    input: Any, weight: Any, bias: Any, mean: Any, var: Any, *_: Any, **__: Any
) -> None:
    check_parameters(input, weight, bias, mean, var)


@op(
    "native_batch_norm",
    "_native_batch_norm_legit",
    mutates=("running_mean", "running_var"),
    dynamic=("momentum",),
    layout="large_images",
    writes=("exact_dtype", "computes_first"),
    refuses=no_kernel("batch_norm", BOOL, INT, COMPLEX),
    condition=_batch_norm_condition,
)
def native_batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Any,
    eps: float,
) -> tuple[Any, ...]:
    out, mean, invstd, new_mean, new_var = batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if not training:
        return out, _empty(input), _empty(input), None, None
    return out, mean, invstd, new_mean, new_var


@op(
    "_native_batch_norm_legit.no_stats",
    dynamic=("momentum",),
    layout="large_images",
    writes=("exact_dtype", "computes_first"),
    refuses=no_kernel("batch_norm", BOOL, INT, COMPLEX),
)
def native_batch_norm_legit_no_stats(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: Any,
    eps: float,
) -> tuple[Array, Array, Array]:
    return batch_norm(input, weight, bias, None, None, training, momentum, eps)[:3]


@op("_native_batch_norm_legit_no_training", dynamic=("momentum",), layout="large_images")
def native_batch_norm_legit_no_training(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: float,
) -> tuple[Array, Array, Array]:
    out = batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[0]
    return out, _empty(input), _empty(input)


@op("_native_batch_norm_legit_functional", dynamic=("momentum",), layout="large_images")
def native_batch_norm_legit_functional(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: Any,
    eps: float,
) -> tuple[Any, ...]:
    results = batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return results if training else (results[0], _empty(input), _empty(input), *results[3:])


def _reserve() -> Array:
    return jnp.zeros((0,), np.uint8)


@op(
    "_batch_norm_with_update",
    mutates=("running_mean", "running_var"),
    dynamic=("momentum",),
    layout="large_images",
)
def batch_norm_with_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: float,
) -> tuple[Any, ...]:
    out, mean, invstd, *new = batch_norm(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, invstd, _reserve(), *new


@op("_batch_norm_with_update_functional", dynamic=("momentum",), layout="large_images")
def batch_norm_with_update_functional(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: float,
) -> tuple[Any, ...]:
    return batch_norm_with_update(input, weight, bias, running_mean, running_var, momentum, eps)


@op("_batch_norm_no_update", dynamic=("momentum",), layout="large_images")
def batch_norm_no_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: Any,
    eps: float,
) -> tuple[Array, Array, Array, Array]:
    out = batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[0]
    return out, _empty(input), _empty(input), _reserve()


@op("native_batch_norm_backward", layout="images", laid_by=(1,))
def native_batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Any,
) -> Grads:
    x, g = widened(input), widened(grad_out)
    axes = (0, *range(2, x.ndim))
    if train:
        mean, invstd = save_mean, save_invstd
    else:
        mean = running_mean
        variance = widened(running_var)  # type: ignore[arg-type]
        invstd = lax.rsqrt(variance + constant(eps, variance.dtype))
    normal = (x - _channels(mean, x)) * _channels(invstd, x)
    bias_sum, weight_sum = jnp.sum(g, axes), jnp.sum(g * normal, axes)
    for_input = None
    if output_mask[0]:
        scale = _channels(invstd, x)
        if weight is not None:
            scale = scale * _channels(weight, x)
        if train:
            count = x.size // x.shape[1] if x.size else 1
            g = g - _channels(bias_sum / count, x) - normal * _channels(weight_sum / count, x)
        for_input = (g * scale).astype(input.dtype)
    dtype = input.dtype if weight is None else weight.dtype
    return (
        for_input,
        weight_sum.astype(dtype) if output_mask[1] else None,
        bias_sum.astype(dtype) if output_mask[2] else None,
    )


@op("batch_norm_backward", layout="images", laid_by=(1,))
def batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: float,
    output_mask: Any,
    reserve: Array,
) -> Grads:
    return native_batch_norm_backward(
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )
