"""Keeps AOTAutograd from computing in the backward graph what would have another value there.

What the forward graph writes to, such as a counter, has its new value when the backward graph runs,
so a copy of the old value stands for it (PyTorch's own backends use the new one).

The gradient of `x.amax()` goes where `x` equals the maximum, so `x` must have the same bits in both
graphs. Computed again, it may be rounded differently (see `calque.program.compared_extrema`).
"""

from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from calque.ops.pointwise.comparison import COMPARING
from calque.upstream.torch_internals import OpOverload


def partitioned(joint: fx.GraphModule, *args: Any, **options: Any) -> Any:
    """Returns the forward and the backward graph of a joint graph."""
    for written in _written_inputs(joint.graph):
        _copy_first(written)
    for node in joint.graph.nodes:
        if node.op == "call_function" and _name(node.target) in COMPARING:
            operands = [one for one in node.all_input_nodes if _is_float(one)]
            if len(operands) > 1:
                for one in operands:
                    _save(one)
    return min_cut_rematerialization_partition(joint, *args, **options)


def _written_inputs(graph: fx.Graph) -> list[fx.Node]:
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    written = dict.fromkeys(copy.args[0] for copy in copies)
    return [one for one in written if isinstance(one, fx.Node) and one.op == "placeholder"]


def _copy_first(written: fx.Node) -> None:
    """Have everything but the writes take a copy of an input."""
    users = [user for user in written.users if not _writes_to(user, written)]
    with written.graph.inserting_after(written):
        copied = written.graph.call_function(torch.ops.aten.clone.default, (written,))
    copied.meta.update(written.meta, recompute=CheckpointPolicy.MUST_SAVE)
    for user in users:
        user.replace_input_with(written, copied)


def _writes_to(user: fx.Node, written: fx.Node) -> bool:
    writes = user.target is torch.ops.aten.copy_.default and user.args[0] is written
    return writes or user.op == "output"


def _save(node: fx.Node) -> None:
    """Mark what computes an operand, through views and the operations of the backward pass."""
    if node.op != "call_function":
        return
    is_late = node.meta.get("partitioner_tag") == "is_backward"
    if is_late or _is_view(node.target) or not _is_operator(node.target):
        for one in filter(_is_float, node.all_input_nodes):
            _save(one)
    else:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _is_operator(target: object) -> bool:
    return isinstance(target, OpOverload)


def _is_view(target: Any) -> bool:
    return _is_operator(target) and any(
        one.alias_info is not None and not one.alias_info.is_write
        for one in target._schema.arguments
    )


def _name(target: Any) -> str:
    return target.overloadpacket.__name__ if _is_operator(target) else ""


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point
