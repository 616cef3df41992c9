"""Layer, group and RMS normalization, with statistics per sample."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.helpers import check_parameters, constant
from calque.ops.table.linear_resample import widened
from calque.ops.table.promotion import BOOL, COMPLEX, INT
from calque.ops.table.registry import op

Grads = tuple[Array | None, Array | None, Array | None]


def _normalize(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """Returns the normalized array, the mean and the reciprocal deviation; the axes are kept."""
    mean = jnp.mean(x, axis=axes, keepdims=True)
    centered = x - mean
    variance = jnp.mean(jnp.square(centered), axis=axes, keepdims=True)
    rstd = lax.rsqrt(variance + constant(eps, x.dtype))
    return centered * rstd, mean, rstd


def _input_gradient(g: Array, normal: Array, rstd: Array, axes: tuple[int, ...]) -> Array:
    mean = jnp.mean(g, axis=axes, keepdims=True)
    slope = jnp.mean(g * normal, axis=axes, keepdims=True)
    return (g - mean - normal * slope) * rstd


def _check_normalized(x: Array, shape: Any, **values: Array | None) -> tuple[int, ...]:
    shape = tuple(shape)
    if not shape:
        raise RuntimeError("Expected normalized_shape to be at least 1-dimensional")
    for name, value in values.items():
        if value is not None and value.shape != shape:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(value.shape)} and normalized_shape = {list(shape)}"
            )
    if x.shape[x.ndim - len(shape) :] != shape or x.ndim < len(shape):
        wanted = ", ".join(map(str, shape))
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {wanted}], but "
            f"got input of size{list(x.shape)}"
        )
    return tuple(range(x.ndim - len(shape), x.ndim))


def _layer_norm_condition(
    input: Any, shape: Any, weight: Any, bias: Any, *_: Any, **__: Any
) -> None:
    check_parameters(input, weight, bias)


@op(
    "native_layer_norm",
    autocast="float32",
    refuses=no_kernel("LayerNormKernelImpl", BOOL, INT, COMPLEX),
    condition=_layer_norm_condition,
)
def native_layer_norm(
    input: Array, normalized_shape: Any, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    axes = _check_normalized(input, normalized_shape, weight=weight, bias=bias)
    out, mean, rstd = _normalize(widened(input), axes, eps)
    if weight is not None:
        out = out * widened(weight)
    if bias is not None:
        out = out + widened(bias)
    return out.astype(input.dtype), mean, rstd


@op("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Any,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Any,
) -> Grads:
    axes = _check_normalized(input, normalized_shape)
    outer = tuple(range(input.ndim - len(axes)))
    g, rstd = widened(grad_out), widened(rstd)
    normal = (widened(input) - widened(mean)) * rstd
    for_input = for_weight = for_bias = None
    if output_mask[0]:
        scaled = g if weight is None else g * widened(weight)
        for_input = _input_gradient(scaled, normal, rstd, axes).astype(input.dtype)
    if output_mask[1] and weight is not None:
        for_weight = jnp.sum(g * normal, axis=outer).astype(weight.dtype)
    if output_mask[2] and bias is not None:
        for_bias = jnp.sum(g, axis=outer).astype(bias.dtype)
    return for_input, for_weight, for_bias


def _grouped(x: Array, n: int, c: int, size: int, group: int) -> Array:
    return widened(x).reshape(n, group, c // group, size)


def _per_channel(values: Array, group: int) -> Array:
    return widened(values).reshape(1, group, -1, 1)


def _group_norm_condition(input: Any, weight: Any, bias: Any, *_: Any, **__: Any) -> None:
    check_parameters(input, weight, bias)


@op(
    "native_group_norm",
    layout="images",
    refuses=no_kernel("GroupNormKernelImpl", BOOL, INT, COMPLEX),
    condition=_group_norm_condition,
)
def native_group_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    if group <= 0 or C % group:
        raise RuntimeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(input.shape)} and num_groups={group}"
        )
    out, mean, rstd = _normalize(_grouped(input, N, C, HxW, group), (2, 3), eps)
    if weight is not None:
        out = out * _per_channel(weight, group)
    if bias is not None:
        out = out + _per_channel(bias, group)
    out = out.reshape(input.shape).astype(input.dtype)
    return out, mean.reshape(N, group), rstd.reshape(N, group)


@op("native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Any,
) -> Grads:
    g = _grouped(grad_out, N, C, HxW, group)
    mean, rstd = (widened(v).reshape(N, group, 1, 1) for v in (mean, rstd))
    normal = (_grouped(input, N, C, HxW, group) - mean) * rstd
    dtype = input.dtype if weight is None else weight.dtype
    for_input = for_weight = for_bias = None
    if output_mask[0]:
        scaled = g if weight is None else g * _per_channel(weight, group)
        for_input = _input_gradient(scaled, normal, rstd, (2, 3))
        for_input = for_input.reshape(input.shape).astype(input.dtype)
    if output_mask[1]:
        for_weight = jnp.sum(g * normal, axis=(0, 3)).reshape(C).astype(dtype)
    if output_mask[2]:
        for_bias = jnp.sum(g, axis=(0, 3)).reshape(C).astype(dtype)
    return for_input, for_weight, for_bias


@op("_fused_rms_norm", refuses=no_kernel("rms_norm", BOOL, INT))
def fused_rms_norm(
    input: Array, normalized_shape: Any, weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    axes = _check_normalized(input, normalized_shape, weight=weight)
    x = widened(input)
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True) + constant(eps, x.dtype))
    out = x * rstd if weight is None else x * rstd * widened(weight)
    return out.astype(input.dtype), rstd


@op("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Any,
    rstd: Array,
    weight: Array | None,
    output_mask: Any,
) -> tuple[Array | None, Array | None]:
    axes = _check_normalized(input, normalized_shape)
    g, rstd = widened(grad_out), widened(rstd)
    normal = widened(input) * rstd
    for_input = for_weight = None
    if output_mask[0]:
        scaled = g if weight is None else g * widened(weight)
        slope = jnp.mean(scaled * normal, axis=axes, keepdims=True)
        for_input = ((scaled - normal * slope) * rstd).astype(input.dtype)
    if output_mask[1] and weight is not None:
        outer = tuple(range(input.ndim - len(axes)))
        for_weight = jnp.sum(g * normal, axis=outer).astype(weight.dtype)
    return for_input, for_weight


@op("_weight_norm_interface")
def weight_norm_interface(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    axes = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    norm = jnp.sqrt(jnp.sum(jnp.square(widened(v)), axis=axes, keepdims=True))
    return (widened(v) * (widened(g) / norm)).astype(v.dtype), norm


@op("_weight_norm_interface_backward")
def weight_norm_interface_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array, Array]:
    axes = tuple(d for d in range(saved_v.ndim) if d != dim % saved_v.ndim)
    w, v, g = widened(grad_w), widened(saved_v), widened(saved_g)
    direction = v / saved_norms
    along = jnp.sum(w * direction, axis=axes, keepdims=True)
    for_v = (g / saved_norms) * (w - direction * along)
    return for_v.astype(saved_v.dtype), along.astype(saved_g.dtype)


facts("group_norm layer_norm rms_norm", autocast="float32")
