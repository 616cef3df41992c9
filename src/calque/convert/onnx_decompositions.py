"""Operators of which PyTorch has no decomposition, in other operators."""

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


_aten = torch.ops.aten
WRITTEN_HERE: dict[Any, Callable[..., Any]] = {
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    _aten.as_strided.default: _as_strided,
    torch.ops.prims.convert_element_type.default: lambda a, dtype: a.to(dtype),
}
