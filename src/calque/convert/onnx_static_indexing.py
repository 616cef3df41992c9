"""Decompositions of operators that read or write elements at known positions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calque.upstream.torch_internals import disable_current_modes


def _numbered(shape: Any) -> Tensor:
    """Returns the number of each element of a tensor, in order."""
    return torch.arange(torch.Size(shape).numel()).view(shape)


def _written(self: Tensor, src: Tensor, places: Tensor) -> Tensor:
    """Returns a copy in which the elements with these numbers are those of `src`."""
    values = src.to(self.dtype).expand(places.shape).reshape(-1)
    return self.reshape(-1).scatter(0, places.flatten(), values).reshape(self.shape)


def _strided_places(
    self: Tensor, size: list[int], stride: list[int], storage_offset: int | None
) -> Tensor:
    """Returns the numbers of the elements of `self` that a view of its memory contains."""
    start = self.storage_offset()
    offset = (start if storage_offset is None else storage_offset) - start
    length = sum((n - 1) * s for n, s in zip(self.shape, self.stride(), strict=True)) + 1
    memory = torch.full((length,), -1)
    memory.as_strided(self.shape, self.stride()).copy_(_numbered(self.shape))
    places = memory.as_strided(size, stride, offset)
    if bool((places < 0).any()):
        raise NotImplementedError("memory between the elements")
    return places.clone()


def _as_strided(
    self: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    with disable_current_modes():
        places = _strided_places(self, size, stride, storage_offset)
        is_whole = torch.equal(places.flatten(), torch.arange(self.numel()))
    return self.reshape(size) if is_whole else _taken(self, places)


def _taken(self: Tensor, places: Tensor) -> Tensor:
    return self.reshape(-1).index_select(0, places.flatten()).reshape(places.shape)


def _as_strided_scatter(
    self: Tensor,
    src: Tensor,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> Tensor:
    with disable_current_modes():
        places = _strided_places(self, size, stride, storage_offset)
    return _written(self, src, places)


def _scatter_into(view: Any) -> Callable[..., Tensor]:
    """Returns a function that writes to the elements of a view."""

    def scatter(self: Tensor, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with disable_current_modes():
            places = view(_numbered(self.shape), *args, **kwargs).clone()
        return _written(self, src, places)

    return scatter


def _resized(self: Tensor, made: Callable[[Tensor, list[int], int], Tensor], size: Any) -> Tensor:
    """Returns a linear resizing of images: a matrix product along each dimension.

    Args:
        made: resizes an image, given the size and the dimension along which to resize.
    """
    with disable_current_modes():
        height, width = self.shape[-2:]
        rows, columns = (torch.eye(n, dtype=self.dtype)[None] for n in (height, width))
        # Two columns, because for a single column PyTorch confuses channels and rows.
        rows = rows[..., None].expand(1, height, height, 2).contiguous()
        columns = columns[:, :, None].expand(1, width, 2, width).contiguous()
        down = made(rows, [size[0], 2], 0)[0, :, :, 0].T.contiguous()
        across = made(columns, [2, size[1]], 1)[0, :, 0].contiguous()
    return torch.matmul(down, torch.matmul(self, across))


def _antialiased(operator: Any) -> Callable[..., Tensor]:
    def resize(
        self: Tensor,
        output_size: list[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        def made(image: Tensor, size: list[int], dim: int) -> Tensor:
            scales = (scales_h, None) if dim == 0 else (None, scales_w)
            return operator(image, size, align_corners, *scales)

        return _resized(self, made, output_size)

    return resize


_aten = torch.ops.aten
PLACES: dict[Any, Callable[..., Any]] = {
    _aten.as_strided.default: _as_strided,
    _aten.as_strided_copy.default: _as_strided,
    _aten.as_strided_scatter.default: _as_strided_scatter,
    _aten.diagonal_scatter.default: _scatter_into(_aten.diagonal.default),
    _aten.slice_scatter.default: _scatter_into(_aten.slice.Tensor),
    _aten._upsample_bilinear2d_aa.default: _antialiased(_aten._upsample_bilinear2d_aa.default),
    _aten._upsample_bicubic2d_aa.default: _antialiased(_aten._upsample_bicubic2d_aa.default),
}
