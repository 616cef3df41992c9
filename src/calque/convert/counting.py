"""Counts floating-point operations of matrix products and convolutions, by the formulas of
`torch.utils.flop_counter` and some for operators that it does not count.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node, map_arg
from torch.utils.flop_counter import flop_registry

from calque.tracing.graph.checks import CHECKS
from calque.tracing.graph.value_guards import OF_RECORDINGS
from calque.tracing.lowering.single_calls import Lowered, likeness, lower_singly
from calque.tracing.lowering.unseen_writes import OF_AUTOGRAD, name_of
from calque.upstream import torch_c

_aten = torch.ops.aten
_COUNTED_AS = {  # the CPU's attention has the same cost
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention
}


def flops_of(node: Node) -> int | None:
    """Returns the floating-point operations of an operator; None if it is not counted.

    Args:
        node: a node that, like its arguments, has its abstract value as `val` in its `meta`.
    """
    packet: Any = getattr(node.target, "overloadpacket", None)
    own, theirs = _FORMULAS.get(packet), flop_registry.get(_COUNTED_AS.get(packet, packet))
    if own is None and theirs is None:
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    if own is not None:
        return 2 * own(*args, **kwargs)
    return int(theirs(*args, **kwargs, out_val=node.meta["val"]))  # pyright: ignore[reportOptionalCall]


def macs_singly(graph: GraphModule) -> dict[str, int] | None:
    """Returns the multiply-accumulate operations of each call of a graph, by the name of its node.

    Each call is lowered separately, for the shapes of the recorded run, so shapes may depend on
    values. Returns None if a call that may contain products cannot be lowered.
    """
    known: dict[Any, Lowered] = {}
    found: dict[str, int] = {}
    for node in graph.graph.nodes:
        if not node.op.startswith("call") or name_of(node) in _WITHOUT or node.target in _CHECKS:
            continue
        macs = _of_packed(node)
        if macs is None:
            key = likeness(node, graph)
            if key not in known:
                known[key] = lower_singly(node, graph)
            if known[key].graph is None and _may_have_products(node):
                return None
            macs = sum(flops_of(each) or 0 for each in known[key].operators) // 2
        found[node.name] = macs
    return found


def _of_packed(node: Node) -> int | None:
    """Returns the operations of a recurrent layer for a packed sequence; None for other calls."""
    if name_of(node) not in ("lstm", "gru", "rnn_tanh", "rnn_relu") or len(node.args) < 4:
        return None
    data, weights = node.args[0], node.args[3]
    if not isinstance(weights, (list, tuple)) or not isinstance(data, Node):
        return None
    shapes = [weight.meta["val"].shape for weight in weights if isinstance(weight, Node)]
    return data.meta["val"].shape[0] * sum(math.prod(s) for s in shapes if len(s) == 2)


def _may_have_products(node: Node) -> bool:
    """Returns True unless a call is a single operator that is not counted."""
    packet = getattr(torch.ops.aten, name_of(node), None) if node.op != "call_module" else None
    if packet is None or packet in _FORMULAS or packet in flop_registry:
        return True
    key = "CompositeImplicitAutograd"
    try:
        names = [getattr(packet, each).name() for each in packet.overloads()]
        return any(torch_c.dispatch_has_kernel_for_dispatch_key(name, key) for name in names)
    except RuntimeError:  # an overload that exists only in TorchScript
        return True


_CHECKS = CHECKS | OF_RECORDINGS
_WITHOUT = frozenset(
    (
        *("nonzero", "argwhere", "masked_select", "where", "getitem", "setitem", "index_put_"),
        *("unique", "unique_consecutive", "unique_dim", "_unique2", "bincount", "histc"),
        *("repeat_interleave", "tensor_split", "item", "tolist", "numpy", "setattr", "assign"),
        *("_pack_padded_sequence", "_pad_packed_sequence", "rebuilt", "number_of_parts", "len"),
        *("tensor", "as_tensor", "new_tensor", "shape", "size", "numel"),
        *("manual_seed", "random_state", "set_random_state"),
        *("set_grad_enabled", "is_grad_enabled", "_enter_autocast", "_exit_autocast"),
        *("backward", "grad", *OF_AUTOGRAD),
    )
)
"""Calls without products, also if they cannot be lowered, and those that compute gradients."""


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
"""The multiply-accumulate operations of operators for which PyTorch has no formula."""
