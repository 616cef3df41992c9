"""Interpolation: nearest, linear and cubic resampling of the last one to three axes.

Sizes and scales are static, so sources and weights are computed while tracing, in the precision in
which PyTorch computes them. `dynamic_resize` is for the symbolic sizes of exported programs.
"""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.nn import dynamic_resize
from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.linear_resample import Taps, apply_taps
from calque.ops.table.promotion import BOOL, COMPLEX, INT, refuse
from calque.ops.table.registry import op

Maker = Callable[[int, int, bool, float | None, Any], Taps]


def _step(size: int, out: int, align: bool, scale: float | None, real: Any) -> Any:
    """Returns the number of input positions per output position."""
    if align:
        return real(size - 1) / real(out - 1) if out > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(size) / real(out)


def _nearest(offset: float, by_sizes: bool = False) -> Maker:
    """Returns the nearest position; by the sizes, not the scale, if they are equal or doubled."""

    def make(size: int, out: int, align: bool, scale: float | None, real: Any) -> Taps:
        at = np.arange(out)
        # PyTorch computes these positions in float32 for every dtype.
        step = _step(size, out, False, scale, np.float32)
        sources = np.floor((at.astype(np.float32) + np.float32(offset)) * step).astype(np.int64)
        if by_sizes and out == size:
            sources = at
        elif by_sizes and out == 2 * size:
            sources = at // 2
        sources = np.minimum(sources, size - 1)
        return Taps(sources[:, None], np.ones((out, 1)), size)

    return make


def _positions(out: int, step: Any, align: bool, real: Any) -> np.ndarray:
    at = np.arange(out).astype(real)
    return step * at if align else step * (at + real(0.5)) - real(0.5)


def _linear(size: int, out: int, align: bool, scale: float | None, real: Any) -> Taps:
    if size == out:
        return Taps(np.arange(out)[:, None], np.ones((out, 1)), size)
    at = np.maximum(_positions(out, _step(size, out, align, scale, real), align, real), real(0))
    low = np.minimum(at.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.clip(at - low.astype(real), 0, 1)
    return Taps(np.stack([low, high], 1), np.stack([real(1) - part, part], 1), size)


def _cubic_weights(part: np.ndarray, a: float) -> np.ndarray:
    def near(x: np.ndarray) -> np.ndarray:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: np.ndarray) -> np.ndarray:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return np.stack([far(part + 1), near(part), near(1 - part), far(2 - part)], 1)


def _cubic(size: int, out: int, align: bool, scale: float | None, real: Any) -> Taps:
    at = _positions(out, _step(size, out, align, scale, real), align, real)
    low = np.floor(at)
    part = np.clip(at - low, 0, 1)
    sources = low.astype(np.int64)[:, None] + np.arange(-1, 3)
    return Taps(np.clip(sources, 0, size - 1), _cubic_weights(part, -0.75), size)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _keys(x: np.ndarray) -> np.ndarray:
    x, a = np.abs(x), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _antialiased(filter: Callable[[np.ndarray], np.ndarray], width: int) -> Maker:
    """Returns a filter stretched to the output's step, with weights that sum to one."""

    def make(size: int, out: int, align: bool, scale: float | None, real: Any) -> Taps:
        step = float(_step(size, out, align, scale, real))
        support = width / 2 * step if step >= 1 else width / 2
        stretch = 1 / step if step >= 1 else 1.0
        center = step * (np.arange(out) + 0.5)
        first = np.maximum((center - support + 0.5).astype(np.int64), 0)
        count = np.minimum((center + support + 0.5).astype(np.int64), size) - first
        count = np.maximum(count, 0)
        k = np.arange(int(count.max(initial=1)))
        live = k < count[:, None]
        weights = filter((k + (first - center)[:, None] + 0.5) * stretch) * live
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
        return Taps(np.minimum(first[:, None] + k, size - 1), weights, size)

    return make


def _taps(make: Maker, sizes: Any, out: Any, align: bool, scales: Any, dtype: Any) -> list[Taps]:
    if min(sizes) <= 0 or min(out) <= 0:
        raise RuntimeError(
            "Input and output sizes should be greater than 0, but got input "
            f"{list(sizes)} output {list(out)}"
        )
    real = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    return [make(n, m, align, scale, real) for n, m, scale in zip(sizes, out, scales, strict=True)]


def _merged(taps: Taps) -> Taps:
    """Merges taps that read the same element, as at a border."""
    weights = np.array(taps.weights)
    for k in range(1, weights.shape[1] if weights.shape[1] <= 4 else 0):
        for earlier in range(k):
            same = taps.sources[:, earlier] == taps.sources[:, k]
            weights[:, earlier] += np.where(same, weights[:, k], 0)
            weights[:, k] = np.where(same, 0, weights[:, k])
    return Taps(taps.sources, weights, taps.size)


def _apply_to_bytes(x: Array, taps: list[Taps]) -> Array:
    """Applies taps to bytes: with 16-bit weights, the last axis first, rounding and clamping each
    axis.

    Like Pillow, PyTorch chooses the number of fractional bits by the largest weight.
    """
    x = x.astype(jnp.int32)
    for axis, one in reversed(list(enumerate(map(_merged, taps), start=2))):
        largest = one.weights.max()
        bits = next((b for b in range(22) if int(0.5 + largest * 2 ** (b + 1)) >= 2**15), 22)
        scaled = one.weights * 2**bits
        whole = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32)
        total = Taps(one.sources, whole, one.size)(x, axis).astype(jnp.int32)
        x = jnp.clip((total + (1 << (bits - 1))) >> bits, 0, 255)
    return x.astype(jnp.uint8)


def _check_rank(x: Array, ndim: int) -> None:
    if x.ndim != ndim + 2 or 0 in x.shape[1:]:
        raise RuntimeError(
            f"Non-empty {ndim + 2}D data tensor expected but got a tensor with sizes "
            f"{list(x.shape)}"
        )


def _check_grad(grad: Array, input_size: Any, output_size: Any) -> None:
    expected = (*input_size[:2], *output_size)
    if grad.shape != expected:
        raise RuntimeError(
            f"Expected grad_output to have the shape {list(expected)} but got {list(grad.shape)}"
        )


_POSITIONAL = Parameter.POSITIONAL_OR_KEYWORD
_SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def _register(
    name: str, ndim: int, make: Maker, aligned: bool, kind: str | None, back: Maker | None = None
) -> None:
    """Registers the rules of one resampling and its gradient.

    The operators have one parameter for the scale of each axis; `aligned` ones have `align_corners`
    before these. `kind` is the kind in `dynamic_resize`, if any. `back` is for the gradient.
    """
    options = (*(("align_corners",) if aligned else ()), *_SCALES[ndim])

    def parse(rest: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, list[Any]]:
        values = {**dict(zip(options, rest, strict=False)), **named}
        return bool(values.get("align_corners", False)), [values.get(s) for s in _SCALES[ndim]]

    def forward(self: Array, output_size: Any, *rest: Any, **named: Any) -> Array:
        _check_rank(self, ndim)
        if self.dtype != jnp.uint8:
            refuse("compute_indices_weights", self.dtype, BOOL, INT, COMPLEX)
        align, scales = parse(rest, named)
        fixed = self.dtype == jnp.uint8 and ndim == 2 and aligned
        dynamic = not all(isinstance(n, int) for n in (*self.shape[2:], *output_size))
        if dynamic and kind and not fixed:
            return dynamic_resize.resample(self, kind, output_size, align, scales)
        real = jnp.float64 if fixed else self.dtype
        taps = _taps(make, self.shape[2:], output_size, align, scales, real)
        return _apply_to_bytes(self, taps) if fixed else apply_taps(self, taps)

    def backward(
        grad_output: Array, output_size: Any, input_size: Any, *rest: Any, **named: Any
    ) -> Array:
        _check_grad(grad_output, input_size, output_size)
        if make is _cubic and list(input_size[2:]) == list(output_size):
            return grad_output  # as on CPUs, whatever the scales are
        align, scales = parse(rest, named)
        taps = _taps(back or make, input_size[2:], output_size, align, scales, grad_output.dtype)
        return apply_taps(grad_output, taps, transpose=True)

    _name_parameters(forward, ("self", "output_size", *options))
    _name_parameters(backward, ("grad_output", "output_size", "input_size", *options))
    op(name)(forward)
    op(f"{name}_backward")(backward)


def _name_parameters(function: Any, names: tuple[str, ...]) -> None:
    function.__signature__ = Signature([Parameter(n, _POSITIONAL) for n in names])


for _ndim in (1, 2, 3):
    # On CPUs PyTorch looks at the sizes for images, and for the gradients of all.
    _register(
        f"upsample_nearest{_ndim}d",
        *(
            _ndim,
            _nearest(0.0, by_sizes=_ndim == 2),
            False,
            "nearest",
            _nearest(0.0, by_sizes=True),
        ),
    )
    _register(f"_upsample_nearest_exact{_ndim}d", _ndim, _nearest(0.5), False, "nearest-exact")
for _name, _ndim, _make, _kind in (
    ("upsample_linear1d", 1, _linear, "linear"),
    ("upsample_bilinear2d", 2, _linear, "linear"),
    ("upsample_trilinear3d", 3, _linear, "linear"),
    ("upsample_bicubic2d", 2, _cubic, "cubic"),
    ("_upsample_bilinear2d_aa", 2, _antialiased(_triangle, 2), None),
    ("_upsample_bicubic2d_aa", 2, _antialiased(_keys, 4), None),
    ("_upsample_lanczos2d_aa", 2, _antialiased(_lanczos, 6), None),
):
    _register(_name, _ndim, _make, True, _kind)


facts(
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    layout="meta_if_strided",
)
facts(
    "_upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward",
    "_upsample_nearest_exact2d_backward upsample_bilinear2d_backward",
    "upsample_nearest2d_backward upsample_trilinear3d_backward",
    layout="any_images",
)
facts(
    "upsample_bicubic2d upsample_bilinear2d upsample_nearest2d upsample_nearest3d",
    layout="meta_if_strided",
    autocast="float32",
)
facts(
    "upsample_linear1d",
    autocast="float32",
    refuses=no_kernel("compute_indices_weights_linear", BOOL, INT, COMPLEX),
)
facts("upsample_nearest1d", autocast="float32")
facts(
    "upsample_trilinear3d",
    layout="meta_if_strided",
    autocast="float32",
    refuses=no_kernel("compute_indices_weights_linear", BOOL, INT, COMPLEX),
)
