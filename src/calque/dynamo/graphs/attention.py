"""The attention operator of graphs traced for the CPU, as matrix products and a softmax.

PyTorch's fused operator for the CPU keeps the queries, keys and values for the backward pass, often
as views of one packed tensor, which XLA takes as copies; and the backward pass computes the weights
again. As simple operators, they occur twice in the joint graph, and the partitioner decides what to
keep, as it does for the device, for which PyTorch itself traces attention in this form.
"""

from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _is_simple(q: Tensor, k: Tensor) -> bool:
    """Returns False for operands that the fused rule computes in other precision, or by groups."""
    return q.dtype in (torch.float32, torch.float64) and q.size(1) == k.size(1)


def _weights(
    q: Tensor, k: Tensor, is_causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the scores and their softmax, (batch, heads, queries, keys) each."""
    scores = torch.matmul(q, k.transpose(-2, -1)) * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = torch.where(seen, scores, float("-inf"))
    if mask is not None:
        scores = scores + mask
    return scores, _aten._safe_softmax.default(scores, -1)


def _heads_inside(value: Tensor) -> Tensor:
    """Returns the values in the layout of the fused operator's other results."""
    return value.transpose(1, 2).contiguous().transpose(1, 2)


def _like(value: Tensor, query: Tensor) -> Tensor:
    """Returns the values in the layout of the fused operator's output, that of the queries."""
    if query.is_contiguous():
        return value.contiguous()
    stride = query.stride()
    order = sorted(range(query.ndim), key=lambda axis: -stride[axis])
    inverse = [order.index(axis) for axis in range(query.ndim)]
    return value.permute(order).contiguous().permute(inverse)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if not _is_simple(query, key):
        return NotImplemented
    scale = query.size(-1) ** -0.5 if scale is None else scale
    scores, weights = _weights(query, key, is_causal, attn_mask, scale)
    lse = torch.logsumexp(scores, -1)
    out = torch.matmul(weights, value)
    return _like(out, query), _heads_inside(lse)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if not _is_simple(query, key):
        return NotImplemented
    scale = query.size(-1) ** -0.5 if scale is None else scale
    _, weights = _weights(query, key, is_causal, attn_mask, scale)
    grad_weights = torch.matmul(grad_out, value.transpose(-2, -1))
    grad_scores = _aten._softmax_backward_data.default(grad_weights, weights, -1, query.dtype)
    grad_scores = grad_scores * scale
    grads = (
        torch.matmul(grad_scores, key),
        torch.matmul(grad_scores.transpose(-2, -1), query),
        torch.matmul(weights.transpose(-2, -1), grad_out),
    )
    return tuple(map(_heads_inside, grads))


DECOMPOSITIONS: dict[Any, Any] = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _forward,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward,
}
