"""The ATen operators that each node of a graph runs, and their StableHLO."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import torch
from torch.fx.graph_module import GraphModule

from calque.device.memory.cell import x64
from calque.device.runtime.dtypes import to_numpy
from calque.errors.handlers import is_of_handler
from calque.errors.printable import shortened
from calque.graph.interpreter import JaxInterpreter
from calque.tracing.lowering.single_calls import Lowered
from calque.upstream.torch_internals import pytree
from calque.view.graph import ViewGraph
from calque.view.operators import lowered

_MOST = 40
"""The maximum number of lines of StableHLO for a node."""

Levels = Mapping[str, tuple[str, ...]]


def with_levels(graph: Any, view: ViewGraph, level: Any = None) -> ViewGraph:
    """Returns the view with the lower levels of each node in `ViewNode.levels`.

    For a node that cannot be lowered separately, they contain the reason, under `"not known"`.

    Raises:
        TypeError: the graph has no operators.
        ValueError: no shapes in it are known.
    """
    found = lowered(graph, level)
    known: dict[int, Levels] = {}
    for one in found.values():
        if id(one) not in known:
            known[id(one)] = _levels(one)
    nodes = (replace(n, levels=known[id(found[n.id])]) if n.id in found else n for n in view.nodes)
    return replace(view, nodes=tuple(nodes))


def _levels(one: Lowered) -> Levels:
    if one.graph is None:
        return MappingProxyType({"not known": (one.reason,)})
    levels = {"aten": tuple(str(node.target) for node in one.operators)}
    try:
        levels["stablehlo"] = tuple(stablehlo(one.graph)[:_MOST])
    except Exception as error:  # an operator has no StableHLO, or a size is unknown
        if is_of_handler(error):
            raise
        levels["not known"] = (str(error).split("\n")[0] or type(error).__name__,)
    return MappingProxyType({name: lines for name, lines in levels.items() if lines})


def stablehlo(graph: GraphModule) -> list[str]:
    """Returns the StableHLO operations that a graph of ATen operators compiles to, one per line."""
    interpreter = JaxInterpreter(graph)
    with x64():
        given = [_aval(node.meta.get("val")) for node in graph.graph.find_nodes(op="placeholder")]
        leaves, spec = jax.tree.flatten(given)
        arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]

        def run(*values: Any) -> Any:
            filled = list(leaves)
            for index, value in zip(arrays, values):
                filled[index] = value
            inputs = jax.tree.unflatten(spec, filled)
            found = jax.tree.leaves(interpreter(*inputs, rng=jax.random.key(0)))
            return [value for value in found if isinstance(value, jax.Array)]

        program: Any = jax.jit(run).lower(*(leaves[i] for i in arrays)).compiler_ir("stablehlo")
    functions = {
        operation.attributes["sym_name"].value: operation.operation
        for operation in program.body.operations
        if "sym_name" in operation.attributes
    }
    return [_line(operation) for operation in _opened(functions["main"], functions)]


def _aval(value: object) -> Any:
    """Returns a value with its tensors replaced by shapes."""

    def aval(tensor: torch.Tensor) -> Any:
        return jax.ShapeDtypeStruct(tuple(map(int, tensor.shape)), to_numpy(tensor.dtype))

    return pytree.tree_map_only(torch.Tensor, aval, value)


def _opened(function: Any, functions: dict[str, Any]) -> Iterator[Any]:
    """Yields the operations of a function, with those of its callees in place of the calls."""
    for region in function.regions:
        for block in region.blocks:
            for inner in block.operations:
                operation = inner.operation
                if operation.name == "func.call":
                    callee = operation.attributes["callee"].value
                    yield from _opened(functions[callee], functions)
                elif operation.name != "func.return":
                    yield operation


def _line(operation: Any) -> str:
    text = operation.get_asm(large_elements_limit=4, use_local_scope=True)
    return shortened(text.split("\n")[0], 160)
