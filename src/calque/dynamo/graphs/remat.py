"""Checkpointed regions in a backward graph, recomputed only when their gradient has arrived.

AOTAutograd places recomputation where it is needed, but XLA reorders programs freely, and drops
optimization barriers on the CPU: it would recompute all regions at the start and hold them all. So
the first operators of a region get an operand selected by bits of a gradient computed before: the
selection always yields the operand, but XLA cannot know this.
"""

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax
from torch import fx

from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap_strided


def in_order(graph: fx.GraphModule) -> fx.GraphModule:
    """Returns a backward graph whose checkpointed regions wait for gradients;
    other graphs unchanged.
    """
    if not any("ac_graph_id" in node.meta for node in graph.graph.nodes):
        return graph
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    found = fx.GraphModule(graph, copied)
    output = next(node for node in graph.graph.nodes if node.op == "output")
    copied.output_node().meta.update(output.meta)
    waiting: set[fx.Node] = set()
    known: dict[Any, fx.Node] = {}
    gradient: fx.Node | None = None
    for node in list(copied.nodes):
        region = node.meta.get("ac_graph_id")
        if node.meta.get("partitioner_tag") == "is_backward" and _is_float(node):
            gradient = node
            waiting.add(node)
        if region is None or gradient is None or node.op != "call_function":
            continue
        waiting.add(node)
        operands = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        if not operands or any(n in waiting for n in operands):
            continue
        first = max(operands, key=lambda n: n.meta["val"].ndim)
        if (region, first) not in known:
            with copied.inserting_before(node):
                known[region, first] = copied.call_function(after, (first, gradient))
        node.replace_input_with(first, known[region, first])
    return found


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def after(value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Returns the value such that XLA cannot compute it before the gradient."""
    array, waited = read(value), read(gradient)
    if not waited.size:
        return value
    bits = lax.bitcast_convert_type(waited.reshape(-1)[0], f"uint{8 * waited.dtype.itemsize}")
    always = (bits ^ 1) != bits
    return wrap_strided(jnp.where(always, array, jnp.zeros((), array.dtype)), value.stride())
