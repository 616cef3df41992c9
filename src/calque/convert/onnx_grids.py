"""The decomposition of `grid_sample` in three dimensions."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NEAREST, _BORDER, _REFLECTION = 1, 1, 2
"""The numbers by which ATen calls a mode of interpolation, and two of padding."""


def _reflected(x: Tensor, size: int, align_corners: bool) -> Tensor:
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if not span:
        return torch.zeros_like(x)
    apart = (x - low).abs()
    flips = (apart / span).floor()
    rest = apart - flips * span
    return torch.where(flips % 2 == 0, rest, span - rest) + low


def _placed(grid: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Returns where the numbers of a grid, from -1 to 1, are among the elements."""
    x = (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2
    if padding == _REFLECTION:
        x = _reflected(x, size, align_corners)
    return x.clamp(0, size - 1) if padding in (_BORDER, _REFLECTION) else x


def _read(volume: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """Returns the elements at these places, (depth, height, width); zero beyond the volume."""
    batch, channels, *sizes = volume.shape
    inside: Any = True
    flat: Any = 0
    for place, size in zip(places, sizes):
        inside = inside & (place >= 0) & (place <= size - 1)
        flat = flat * size + place.nan_to_num(0.0).clamp(0, size - 1)
    index = flat.to(torch.int64).reshape(batch, 1, -1).expand(batch, channels, -1)
    found = volume.reshape(batch, channels, -1).gather(2, index)
    return torch.where(inside.unsqueeze(1), found.reshape(batch, channels, *flat.shape[1:]), 0.0)


def _sample(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    parts = reversed(grid.unbind(-1))  # x comes first in a grid, and last in a volume
    sizes = input.shape[2:]
    at = [_placed(x, size, padding_mode, align_corners) for x, size in zip(parts, sizes)]
    if interpolation_mode == _NEAREST:
        return _read(input, tuple(x.round() for x in at))
    low = [x.floor() for x in at]
    found: Any = 0
    for corner in itertools.product((0, 1), repeat=3):
        weight: Any = 1
        for x, start, side in zip(at, low, corner):
            weight = weight * (x - start if side else start + 1 - x)
        places = tuple(start + side for start, side in zip(low, corner))
        found = found + _read(input, places) * weight.unsqueeze(1)
    return found


GRIDS: dict[Any, Callable[..., Any]] = {torch.ops.aten.grid_sampler_3d.default: _sample}
