"""Max and average pooling over windows of one size, and their gradients.

The gradient of max pooling is that of XLA's windowed maximum (select-and-scatter), which needs no
indices, so a program that pools and differentiates never computes them. On CPUs, small windows use
`shifted_maximum` for both.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.nn import shifted_maximum
from calque.ops.nn.shifted_maximum import prefer
from calque.ops.nn.sliding_windows import Windows, windows
from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.linear_resample import widened
from calque.ops.table.promotion import BOOL, COMPLEX, is_integral
from calque.ops.table.registry import op


def lowest(dtype: Any) -> Any:
    """Returns the identity of max for a dtype."""
    return np.asarray(jnp.iinfo(dtype).min if is_integral(dtype) else -np.inf, dtype)


def _leading(x: Array, w: Windows, values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    return (fill,) * (x.ndim - len(w.size)) + values


def _arguments(x: Array, w: Windows) -> dict[str, Any]:
    return {
        "window_dimensions": _leading(x, w, w.kernel, 1),
        "window_strides": _leading(x, w, w.stride, 1),
        "padding": ((0, 0),) * (x.ndim - len(w.size)) + tuple((a, max(b, 0)) for a, b in w.pads),
        "window_dilation": _leading(x, w, w.dilation, 1),
    }


def _maximum(x: Array, w: Windows) -> Array:
    if shifted_maximum.applies(x, w):
        return shifted_maximum.maximum(x, w, lowest(x.dtype))
    return lax.reduce_window(x, lowest(x.dtype), lax.max, **_arguments(x, w))


def positions(size: tuple[int, ...]) -> Array:
    """Returns the flat position of each element of an array of a shape."""
    return lax.iota(np.int32, math.prod(size)).reshape(size)


def _argmaximum(x: Array, w: Windows) -> Array:
    if shifted_maximum.applies(x, w):
        return shifted_maximum.positions_of(x, w, lowest(x.dtype))
    at = jnp.broadcast_to(positions(w.size), x.shape)
    start = (lowest(x.dtype), np.int32(np.iinfo(np.int32).max))
    x = lax.stop_gradient(x)  # positions have no gradient
    return lax.reduce_window((x, at), start, prefer, **_arguments(x, w))[1].astype(np.int64)


def scatter_add(grad: Array, indices: Array, shape: tuple[int, ...], ndim: int) -> Array:
    """Adds a gradient into zeros of a shape, at flat positions over its last `ndim` axes."""
    lead = shape[: len(shape) - ndim]
    rows = int(np.prod(lead))
    at = indices.reshape(rows, math.prod(indices.shape[len(lead) :]))
    row = lax.broadcasted_iota(at.dtype, at.shape, 0)
    values = widened(grad).reshape(at.shape)
    flat = jnp.zeros((rows, int(np.prod(shape[len(lead) :]))), values.dtype)
    return flat.at[row, at].add(values, mode="drop").reshape(shape).astype(grad.dtype)


def _max_pool(ndim: int) -> None:
    suffix = f"max_pool{ndim}d_with_indices"

    @op(suffix)
    def forward(
        self: Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        w = windows(self.shape, ndim, kernel_size, stride, padding, dilation, ceil_mode)
        return _maximum(self, w), _argmaximum(self, w)

    @op(f"{suffix}_backward")
    def backward(
        grad_output: Array,
        self: Array,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
        indices: Array,
    ) -> Array:
        w = windows(self.shape, ndim, kernel_size, stride, padding, dilation, ceil_mode)
        shifted = shifted_maximum.applies(self, w)
        if shifted and shifted_maximum.has_gradient(w):
            return shifted_maximum.gradient(grad_output, self, w, lowest(self.dtype))
        if shifted or max(w.dilation) > 1:
            return scatter_add(grad_output, indices, self.shape, ndim)
        wide = widened(self)
        _, pull = jax.vjp(lambda x: _maximum(x, w), wide)
        return pull(grad_output.astype(wide.dtype))[0].astype(grad_output.dtype)


def _average(x: Array, w: Windows, count_include_pad: bool, divisor_override: int | None) -> Array:
    wide = widened(x)
    total = lax.reduce_window(wide, np.zeros((), wide.dtype), lax.add, **_arguments(x, w))
    divisor: Any = divisor_override
    if divisor is None:
        divisor = (_counts if w.is_known else _dynamic_counts)(w, count_include_pad)
    divisor = (jnp if isinstance(divisor, Array) else np).asarray(divisor, wide.dtype)
    if is_integral(x.dtype):
        return lax.div(total, jnp.broadcast_to(divisor, total.shape))
    return (total / divisor).astype(x.dtype)


def _counts(w: Windows, include_padding: bool) -> Any:
    """Returns the number of positions in each window; a single number if all are equal."""
    counts = np.ones((), np.int64)
    for axis in range(len(w.size)):
        counts = np.multiply.outer(counts, w.counts(axis, include_padding))
    return counts.flat[0] if counts.min() == counts.max() else counts


def _dynamic_counts(w: Windows, include_padding: bool) -> Any:
    """Like `_counts`, for symbolic sizes: the window sums of an image of ones."""
    if not any(p for pads in w.pads for p in pads):
        return math.prod(w.kernel)
    ones = jnp.ones(w.size, np.int32)
    arguments = _arguments(ones, w)
    if include_padding:
        ones = jnp.pad(ones, [(p, p) for p in w.padding], constant_values=1)
        arguments["padding"] = tuple((0, b - p) for p, b in w.pads)
    return lax.reduce_window(ones, np.int32(0), lax.add, **arguments)


def _check_divisor(divisor: int | None) -> None:
    if divisor == 0:
        raise RuntimeError("divisor must be not zero")


def _avg_pool(ndim: int) -> None:
    @op(f"avg_pool{ndim}d")
    def forward(
        self: Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        _check_divisor(divisor_override)
        w = windows(self.shape, ndim, kernel_size, stride, padding, 1, ceil_mode)
        return _average(self, w, count_include_pad, divisor_override)

    @op(f"avg_pool{ndim}d_backward")
    def backward(
        grad_output: Array,
        self: Array,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Array:
        w = windows(self.shape, ndim, kernel_size, stride, padding, 1, ceil_mode)
        _, pull = jax.vjp(lambda x: _average(x, w, count_include_pad, divisor_override), self)
        return pull(grad_output)[0]


for _ndim in (2, 3):
    _max_pool(_ndim)
    _avg_pool(_ndim)


facts(
    "avg_pool2d",
    layout="meta_if_strided",
    writes=("exact_dtype", "computes_first"),
    refuses=no_kernel("avg_pool2d", BOOL, COMPLEX),
)
facts(
    "avg_pool2d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
    layout="images",
    laid_by=(1,),
)
facts(
    "avg_pool3d",
    layout="meta_if_strided",
    writes=("exact_dtype",),
    refuses=no_kernel("avg_pool3d_out_frame", BOOL, COMPLEX),
)
facts(
    "max_pool2d_with_indices",
    layout="meta_if_strided",
    refuses=no_kernel("max_pool2d", BOOL, COMPLEX),
)
facts(
    "max_pool3d_with_indices",
    layout="volumes",
    refuses=no_kernel("max_pool3d", BOOL, COMPLEX),
)


def _avg_pool_condition(self: Any, *_: Any, **__: Any) -> None:
    if self.ndim < 3:
        wrap_dim(-3, self.ndim)
    _no_empty_image(self)


def _no_empty_image(self: Any, *_: Any, **__: Any) -> None:
    if self.ndim in (3, 4) and 0 in self.shape[-3:]:
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input, but "
            f"got:{list(self.shape)}"
        )


facts("avg_pool2d", condition=_avg_pool_condition)
facts("max_pool2d_with_indices", condition=_no_empty_image)


def _no_empty_volume(self: Any, *_: Any, **__: Any) -> None:
    if self.ndim in (4, 5) and (self.ndim == 4 or self.shape[0]) and 0 in self.shape[-4:]:
        raise RuntimeError(
            "pool3d: Expected input's non-batch dimensions to have positive "
            f"length, but input has a shape of {list(self.shape)}"
        )


facts("avg_pool3d max_pool3d_with_indices", condition=_no_empty_volume)
