"""Graphs that give an argument new memory (`x.data = y`): AOTAutograd puts `set_` at their end, or,
in later releases, `shallow_copy_data_`.

A program only returns values. So the graph returns the other tensor as an additional result, and
the argument is set to it after the call.
"""

import torch
from torch import fx

_NAMES = (("set_", "source_Tensor"), ("shallow_copy_data_", "default"))
_SETS = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in _NAMES
    if hasattr(torch.ops.aten, name)
)


def rebound(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """Returns the graph without these calls; its last results are the arguments' new values.

    Returns:
        The graph and the indexes of those arguments, in the order of its last results.
    """
    if not any(node.target in _SETS for node in graph.graph.nodes):
        return graph, []
    copied = fx.Graph()
    last = next(node for node in graph.graph.nodes if node.op == "output")
    results = copied.graph_copy(graph.graph, {})
    inputs = [node for node in copied.nodes if node.op == "placeholder"]
    sets = [node for node in copied.nodes if node.target in _SETS]
    assert isinstance(results, tuple | list)
    copied.output((*results, *(node.args[1] for node in sets))).meta.update(last.meta)
    indexes = [inputs.index(node.args[0]) for node in sets]
    for node in sets:
        copied.erase_node(node)
    return fx.GraphModule(graph, copied), indexes
