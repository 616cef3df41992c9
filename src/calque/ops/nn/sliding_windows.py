"""The geometry of sliding windows that pooling and unfolding share."""

from dataclasses import dataclass
from typing import Any

import numpy as np


def each(value: Any, ndim: int) -> tuple[int, ...]:
    """Returns one integer per spatial dimension; a single integer applies to all."""
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * ndim if len(value) == 1 else value


@dataclass(frozen=True)
class Windows:
    """Windows over the last `len(size)` axes of an array.

    Attributes:
        size: the sizes of the axes. `kernel`, `stride`, `padding` (at the front) and `dilation`
            have one number per axis too.
        out: the number of windows along each axis.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """The padding before and after each axis with which every window is inside; negative to
        crop.

        If the size of an axis is symbolic (in an exported program), the padding after it is as much
        as the windows may need.
        """
        fields = (self.size, self.kernel, self.stride, self.padding, self.dilation, self.out)
        return tuple(_pads(*axis) for axis in zip(*fields, strict=True))

    @property
    def is_known(self) -> bool:
        """Whether all sizes are numbers rather than an exported program's symbolic sizes."""
        return all(isinstance(n, int) for n in (*self.size, *self.out))

    def counts(self, axis: int, include_padding: bool) -> np.ndarray:
        """Returns the number of positions in each window that are in the input, or in the input or
        padding."""
        start = np.arange(self.out[axis]) * self.stride[axis] - self.padding[axis]
        limit = self.size[axis]
        if include_padding:
            return np.minimum(start + self.kernel[axis], limit + self.padding[axis]) - start
        return np.minimum(start + self.kernel[axis], limit) - np.maximum(start, 0)


def _pads(n: Any, k: int, s: int, p: int, d: int, o: Any) -> tuple[int, int]:
    """Returns the padding before and after one axis."""
    behind = (o - 1) * s + d * (k - 1) + 1 - n - p
    if not isinstance(behind, int):
        floors = o == (n + 2 * p - d * (k - 1) - 1) // s + 1
        behind = p if floors else p + s - 1
    return p, behind


def windows(
    shape: tuple[int, ...],
    ndim: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Windows:
    """Returns the windows of a pooling over the last `ndim` axes of a shape.

    Raises:
        RuntimeError: arguments that PyTorch refuses.
    """
    kernel = each(kernel, ndim)
    stride = each(stride, ndim) if len(stride) else kernel
    padding, dilation = each(padding, ndim), each(dilation, ndim)
    size = tuple(shape[-ndim:])
    if min(kernel) <= 0 or min(stride) <= 0 or min(dilation) <= 0:
        raise RuntimeError(
            f"kernel size, stride and dilation should be greater than zero, but got kernel "
            f"{kernel}, stride {stride}, dilation {dilation}"
        )
    if len(shape) not in (ndim + 1, ndim + 2):
        raise RuntimeError(
            f"non-empty {ndim + 1}D or {ndim + 2}D (batch mode) tensor expected for input, but got "
            f"shape {list(shape)}"
        )
    for k, p, d in zip(kernel, padding, dilation, strict=True):
        if p < 0:
            raise RuntimeError(f"pad must be non-negative, but got pad: {p}")
        if p > (d * (k - 1) + 1) // 2:
            raise RuntimeError(
                "pad should be at most half of effective kernel size, but got "
                f"pad={p}, kernel_size={k} and dilation={d}"
            )
    out = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        count = (span + (s - 1 if ceil_mode else 0)) // s + 1
        # Skip a window that would start in the padding after the input.
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        out.append(count)
    if any(count < 1 for count in out):
        raise RuntimeError(
            f"Given input size: {list(shape[-ndim - 1 :])}. Calculated output size: {out}. Output "
            "size is too small"
        )
    return Windows(size, kernel, stride, padding, dilation, tuple(out))
