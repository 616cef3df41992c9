"""Graphs that give an argument other memory (`x.data = y`): AOTAutograd puts `set_` at their end.

A program gives values only. So the graph gives the other tensor as one more result, and the
argument is set to it after the call.
"""

import torch
from torch import fx

_SET = torch.ops.aten.set_.source_Tensor


def rebound(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """The graph without `set_`, whose last results some arguments are to be set to.

    Returns:
        The graph and the indexes of those arguments, in the order of its last results.
    """
    if not any(node.target is _SET for node in graph.graph.nodes):
        return graph, []
    copied = fx.Graph()
    last = next(node for node in graph.graph.nodes if node.op == "output")
    results = copied.graph_copy(graph.graph, {})
    inputs = [node for node in copied.nodes if node.op == "placeholder"]
    sets = [node for node in copied.nodes if node.target is _SET]
    assert isinstance(results, tuple | list)
    copied.output((*results, *(node.args[1] for node in sets))).meta.update(last.meta)
    indexes = [inputs.index(node.args[0]) for node in sets]
    for node in sets:
        copied.erase_node(node)
    return fx.GraphModule(graph, copied), indexes
