"""Floating-point operations of matrix products and convolutions: the formulas of
`torch.utils.flop_counter`, and some for operators that it does not count.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import Node, map_arg
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_COUNTED_AS = {  # the attention of the CPU is like the other
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention
}


def flops_of(node: Node) -> int | None:
    """Returns the floating-point operations of an operator; None if it is not counted.

    Args:
        node: it and its arguments have their abstract values as `val` in their `meta`.
    """
    packet: Any = getattr(node.target, "overloadpacket", None)
    own, theirs = _FORMULAS.get(packet), flop_registry.get(_COUNTED_AS.get(packet, packet))
    if own is None and theirs is None:
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    if own is not None:
        return 2 * own(*args, **kwargs)
    return int(theirs(*args, **kwargs, out_val=node.meta["val"]))  # pyright: ignore[reportOptionalCall]


def _grouped(a: Tensor, b: Tensor, *others: Any, **options: Any) -> int:
    rows = a.numel() // a.shape[0] if a.dim() > b.dim() else a.numel()
    return rows * b.shape[-1]


def _trilinear(
    first: Tensor, second: Tensor, third: Tensor, *added: list[int], **options: Any
) -> int:
    shapes = []
    for tensor, dims in zip((first, second, third), added):
        shape = list(tensor.shape)
        for dim in sorted(dims):
            shape.insert(dim, 1)
        shapes.append(shape)
    return torch.Size(torch.broadcast_shapes(*shapes)).numel()


def _encoder_layer(x: Tensor, width: int, heads: int, *weights: Any, **options: Any) -> int:
    matrices = [weight.numel() for weight in weights if getattr(weight, "ndim", 0) == 2]
    return x.numel() // width * sum(matrices[:4]) + 2 * x.numel() * x.shape[-2]


_FORMULAS: dict[Any, Callable[..., int]] = {
    _aten._grouped_mm: _grouped,
    _aten._transformer_encoder_layer_fwd: _encoder_layer,
    _aten._trilinear: _trilinear,
    _aten.addmv: lambda _, matrix, *others, **options: matrix.numel(),
    _aten.dot: lambda a, b: a.numel(),
    _aten.mv: lambda matrix, vector: matrix.numel(),
    _aten.vdot: lambda a, b: a.numel(),
}
"""The multiply-accumulate operations of operators without a formula of PyTorch's."""
