"""Operators of which PyTorch has no decomposition, in other operators."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calque.upstream.torch_internals import disable_current_modes


def _attend(
    x: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    heads: int,
    mask: Tensor | None,
    mask_type: int | None,
) -> Tensor:
    batch, length, width = x.shape
    packed = F.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads)
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    scores = torch.matmul(q, k.transpose(-2, -1)) * (width // heads) ** -0.5
    if mask is not None:
        shapes = {0: (length, length), 1: (batch, 1, 1, length), 2: mask.shape}
        hidden = mask.view(shapes[mask_type or 0]).to(torch.bool)
        scores = scores.masked_fill(hidden, float("-inf"))
    found = torch.matmul(scores.softmax(-1), v)
    return F.linear(found.transpose(1, 2).reshape(batch, length, width), proj_weight, proj_bias)


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    def first(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(x: Tensor) -> Tensor:
        given = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attend(x, *given, num_heads, mask, mask_type)

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(first(src))
        return x + feed_forward(second(x))
    x = first(src + attention(src))
    return second(x + feed_forward(x))


def _as_strided(
    self: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    """The elements by their places in memory, of a tensor whose places are known."""
    start = self.storage_offset()
    offset = (start if storage_offset is None else storage_offset) - start
    length = sum((n - 1) * s for n, s in zip(self.shape, self.stride(), strict=True)) + 1
    with disable_current_modes():
        memory = torch.full((length,), -1)
        memory.as_strided(self.shape, self.stride()).copy_(
            torch.arange(self.numel()).view(self.shape)
        )
        places = memory.as_strided(size, stride, offset)
        in_order = bool((places.flatten() == torch.arange(places.numel())).all())
    if not in_order:
        raise NotImplementedError("elements in another order")
    return self.reshape(size)


def _expm1(self: Tensor) -> Tensor:
    """By the correction of Kahan, which keeps small numbers."""
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    power = x.exp()
    less = power - 1
    is_plain = (less == -1) | (power == float("inf"))
    corrected = less * (x / torch.where(power == 1, 2.0, power).log())
    return torch.where(power == 1, x, torch.where(is_plain, less, corrected))


def _atan2(self: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    y, x = torch.broadcast_tensors(self.to(dtype), other.to(dtype))
    down, back = ((v < 0) | (v.reciprocal() < 0) for v in (y, x))  # -0.0 among them
    inf = float("inf")
    quotient = torch.where((y == 0) & (x == 0), y, y / x)
    both = (y.abs() == inf) & (x.abs() == inf)
    quotient = torch.where(both, torch.where(down ^ back, -1.0, 1.0), quotient)
    angle = quotient.atan()
    return torch.where(back, angle + torch.where(down, -math.pi, math.pi), angle)


def _celu(self: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.ops.aten.elu(self, alpha, 1.0, 1.0 / alpha)


def _index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    x, added = (t if t.dim() else t.reshape(1) for t in (self, source))
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.to(torch.int64).reshape(shape).expand(added.shape)
    return x.scatter_add(dim, places, added * alpha).reshape(self.shape)


def _diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rows, columns = self.shape[dim1], self.shape[dim2]
    first = max(-offset, 0) * columns + max(offset, 0)
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    places = torch.arange(count) * (columns + 1) + first
    return self.movedim((dim1, dim2), (-2, -1)).flatten(-2).index_select(-1, places)


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    apart = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).sum(-1).to(x1.dtype)
    if p == float("inf"):
        return apart.amax(-1)
    if p == 1:
        return apart.sum(-1)
    return (apart * apart).sum(-1).sqrt() if p == 2 else apart.pow(p).sum(-1).pow(1 / p)


_aten = torch.ops.aten
WRITTEN_HERE: dict[Any, Callable[..., Any]] = {
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    _aten._cdist_forward.default: _cdist,
    _aten._euclidean_dist.default: lambda x1, x2: _cdist(x1, x2, 2.0),
    _aten.as_strided.default: _as_strided,
    _aten.atan2.default: _atan2,
    _aten.celu.default: _celu,
    _aten.diagonal.default: _diagonal,
    _aten.diagonal_copy.default: _diagonal,
    _aten.expm1.default: _expm1,
    _aten.index_add.default: _index_add,
    torch.ops.prims.convert_element_type.default: lambda a, dtype: a.to(dtype),
}
