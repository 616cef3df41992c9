"""Padding by reflection, by the edge and by a constant; negative amounts crop."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.number_range import Holds
from calque.ops.table.promotion import BOOL
from calque.ops.table.registry import op


def _amounts(padding: Any, ndim: int) -> list[tuple[int, int]]:
    """Returns (before, after) for each axis, from PyTorch's flat list, which begins with the last
    axis."""
    flat = list(padding)
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


def _crop(x: Array, amounts: list[tuple[int, int]]) -> Array:
    starts = [max(-before, 0) for before, _ in amounts]
    ends = [n - max(-after, 0) for n, (_, after) in zip(x.shape, amounts, strict=True)]
    if starts == [0] * x.ndim and ends == list(x.shape):
        return x
    return lax.slice(x, starts, ends)


def _check(x: Array, padding: Any, dims: int, mode: str) -> list[tuple[int, int]]:
    amounts = _amounts(padding, x.ndim)
    if x.ndim not in (dims + 1, dims + 2) or 0 in x.shape[x.ndim - dims - 1 :]:
        raise RuntimeError(
            f"Expected {dims + 1}D or {dims + 2}D (batch mode) tensor with possibly 0 batch size "
            f"and other non-zero dimensions for input, but got: {list(x.shape)}"
        )
    for axis, (n, (before, after)) in enumerate(zip(x.shape, amounts, strict=True)):
        if mode == "reflect" and max(before, after) >= n and axis >= x.ndim - dims:
            raise RuntimeError(
                "Argument #4: Padding size should be less than the corresponding input dimension, "
                f"but got: padding ({before}, {after}) at dimension {axis} of input {list(x.shape)}"
            )
        if n + before + after < 1 and axis >= x.ndim - dims:
            raise RuntimeError(
                f"input (size {list(x.shape)}) is too small: padding ({before}, {after}) at "
                f"dimension {axis} leaves nothing"
            )
    return amounts


def _pad(x: Array, amounts: list[tuple[int, int]], mode: str) -> Array:
    positive = [(max(before, 0), max(after, 0)) for before, after in amounts]
    return _crop(jnp.pad(x, positive, mode=mode), amounts)


def _register(name: str, dims: int, mode: str) -> None:
    @op(name)
    def forward(self: Array, padding: Any) -> Array:
        return _pad(self, _check(self, padding, dims, mode), mode)

    @op(f"{name}_backward")
    def backward(grad_output: Array, self: Array, padding: Any) -> Array:
        amounts = _check(self, padding, dims, mode)
        return jax.vjp(lambda x: _pad(x, amounts, mode), self)[1](grad_output)[0]


for _dims in (1, 2, 3):
    _register(f"reflection_pad{_dims}d", _dims, "reflect")
    _register(f"replication_pad{_dims}d", _dims, "edge")


@op("constant_pad_nd", layout="meta_if_strided", numbers=Holds("value"))
def constant_pad_nd(self: Array, pad: Any, value: Any = 0) -> Array:
    if len(pad) % 2 or len(pad) > 2 * self.ndim:
        raise RuntimeError(
            f"Length of pad must be even and at most twice the number of dimensions of the input: "
            f"got {list(pad)} for {self.ndim} dimensions"
        )
    amounts = _amounts(pad, self.ndim)
    for n, (before, after) in zip(self.shape, amounts, strict=True):
        if n + before + after < 0:
            raise RuntimeError(
                f"The input size {n}, plus negative padding {before} and {after} resulted in a "
                "negative output size, which is invalid"
            )
    fill = jnp.asarray(value).astype(self.dtype)
    return lax.pad(self, fill, [(before, after, 0) for before, after in amounts])


facts("reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d", layout="images")
facts(
    "reflection_pad1d reflection_pad2d reflection_pad3d",
    "replication_pad1d replication_pad2d replication_pad3d",
    refuses=no_kernel("pad", BOOL),
)
facts(
    "reflection_pad2d_backward reflection_pad3d_backward",
    "replication_pad2d_backward replication_pad3d_backward",
    layout="images",
    laid_by=(1,),
)
