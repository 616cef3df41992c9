"""Decompositions of operators for which PyTorch has none."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calque.convert.onnx_bessel import BESSEL
from calque.convert.onnx_grids import GRIDS
from calque.convert.onnx_matrices import MATRICES
from calque.convert.onnx_quantization import QUANTIZATION
from calque.convert.onnx_special import SPECIAL, is_negative
from calque.convert.onnx_static_indexing import PLACES


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


def _expm1(self: Tensor) -> Tensor:
    """Uses Kahan's correction, which is accurate for small numbers."""
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
    down, back = ((v < 0) | (v.reciprocal() < 0) for v in (y, x))  # includes -0.0
    inf = float("inf")
    quotient = torch.where((y == 0) & (x == 0), y, y / x)
    both = (y.abs() == inf) & (x.abs() == inf)
    one = torch.ones_like(quotient)
    quotient = torch.where(both, torch.where(down ^ back, -one, one), quotient)
    angle = quotient.atan()
    return torch.where(back, angle + torch.where(down, -math.pi * one, math.pi * one), angle)


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


def _searchsorted(
    sorted_sequence: Tensor,
    self: object,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Counts the elements that are not greater than each value, with NaN as the greatest."""
    rows = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    values = torch.as_tensor(self, dtype=rows.dtype) if not isinstance(self, Tensor) else self
    flat = values.reshape(-1) if rows.dim() == 1 else values
    low, high = rows.unsqueeze(-2), flat.unsqueeze(-1)
    beyond = low > high if right or side == "right" else low >= high
    found = beyond.logical_not().sum(-1).reshape(values.shape)
    return found.to(torch.int32) if out_int32 else found


def _bucketize(
    self: object, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Any:
    return _searchsorted(boundaries, self, out_int32=out_int32, right=right)


def _isin(
    elements: object, test: object, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    tests = test.reshape(-1) if isinstance(test, Tensor) else torch.tensor([test])
    x = elements if isinstance(elements, Tensor) else torch.tensor(elements)
    found = (x.unsqueeze(-1) == tests).any(-1)
    return found.logical_not() if invert else found


def _addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    if not self.is_floating_point():
        beta, alpha = int(beta), int(alpha)
    found = torch.bmm(batch1, batch2).sum(0) * alpha
    return found if beta == 0 else self * beta + found


def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    parts = []
    for part, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for dim in sorted(dims):
            part = part.unsqueeze(dim)
        parts.append(part)
    return (parts[0] * parts[1] * parts[2]).sum(sumdim)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor | None, ...]:
    """Returns the sum, mean or maximum of each bag; the other results are not supported."""
    starts = offsets[:-1] if include_last_offset else offsets
    bags = (torch.arange(indices.shape[0]).unsqueeze(1) >= starts).sum(1) - 1
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    places = bags.unsqueeze(1).expand(rows.shape)
    is_kept = (indices != padding_idx).unsqueeze(1)
    empty = torch.zeros(starts.shape[0], rows.shape[1], dtype=rows.dtype)
    counts = empty.scatter_add(0, places, is_kept.to(rows.dtype).expand(rows.shape))
    if mode == 2:
        rows = torch.where(is_kept, rows, float("-inf"))
        found = empty.scatter_reduce(0, places, rows, "amax", include_self=False)
        return torch.where(counts == 0, 0.0, found), None, None, None
    found = empty.scatter_add(0, places, torch.where(is_kept, rows, 0.0))
    return found / counts.clamp(min=1) if mode == 1 else found, None, None, None


def _copysign(self: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    size = self.to(dtype).abs()
    return torch.where(is_negative(other), -size, size)


def _or_the_other(largest: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Implements `fmax` and `fmin`, which prefer the other operand to NaN."""

    def choose(self: Tensor, other: Tensor) -> Tensor:
        found = largest(self, other)
        if not found.is_floating_point():
            return found
        found = torch.where(other.isnan(), self, found)
        return torch.where(self.isnan(), other, found)

    return choose


def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(self, mask)
    places = mask.reshape(-1).to(torch.int64).cumsum(0).reshape(mask.shape) - 1
    values = source.reshape(-1).index_select(0, places.clamp(min=0).reshape(-1))
    return torch.where(mask, values.reshape(mask.shape), x)


def _shift(down: bool) -> Callable[..., Tensor]:
    def shift(self: Tensor, other: Any) -> Tensor:
        bits = self.dtype.itemsize * 8
        if not isinstance(other, Tensor):
            other = torch.full_like(self, other)
        dtype = torch.result_type(self, other)
        count = other.clamp(0, bits - 2)
        factor = torch.pow(torch.full_like(count, 2), count)
        rest = torch.pow(torch.full_like(count, 2), other.clamp(0, bits) - count)
        if down:
            x = torch.div(self, factor, rounding_mode="floor")
            return torch.div(x, rest, rounding_mode="floor").to(dtype)
        return (self * factor * rest).to(dtype)

    return shift


def _logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    return torch.logaddexp(self * math.log(2), other * math.log(2)) / math.log(2)


def _exp2(self: Tensor) -> Tensor:
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    return torch.pow(torch.full_like(x, 2.0), x)


def _rrelu(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    if training:
        raise NotImplementedError("rrelu in training")
    return F.leaky_relu(self, (lower + upper) / 2), noise


_aten = torch.ops.aten
WRITTEN_HERE: dict[Any, Callable[..., Any]] = {
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    _aten._cdist_forward.default: _cdist,
    _aten._euclidean_dist.default: lambda x1, x2: _cdist(x1, x2, 2.0),
    _aten.atan2.default: _atan2,
    _aten.celu.default: _celu,
    _aten.diagonal.default: _diagonal,
    _aten.diagonal_copy.default: _diagonal,
    _aten.exp2.default: _exp2,
    _aten.expm1.default: _expm1,
    _aten.rrelu_with_noise_functional.default: _rrelu,
    _aten.index_add.default: _index_add,
    _aten.addbmm.default: _addbmm,
    _aten._embedding_bag.default: _embedding_bag,
    _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten.bucketize.Tensor: _bucketize,
    _aten.bucketize.Scalar: _bucketize,
    _aten.copysign.Tensor: _copysign,
    _aten.fmax.default: _or_the_other(torch.maximum),
    _aten.fmin.default: _or_the_other(torch.minimum),
    _aten.isin.Tensor_Tensor: _isin,
    _aten.isin.Tensor_Scalar: _isin,
    _aten.isin.Scalar_Tensor: _isin,
    _aten.logaddexp2.default: _logaddexp2,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.searchsorted.Scalar: _searchsorted,
    _aten._trilinear.default: _trilinear,
    _aten._neg_view.default: torch.neg,
    _aten.resolve_neg.default: torch.clone,
    **BESSEL,
    **GRIDS,
    **MATRICES,
    **PLACES,
    **QUANTIZATION,
    **SPECIAL,
    torch.ops.prims.convert_element_type.default: lambda a, dtype: a.to(dtype),
}
WRITTEN_HERE |= {
    getattr(getattr(_aten, name), overload): _shift(down="right" in name or "rshift" in name)
    for name in ("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
    for overload in (("Tensor", "Scalar") if "__" in name else ("Tensor", "Tensor_Scalar"))
}
