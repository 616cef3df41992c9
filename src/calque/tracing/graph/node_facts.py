"""What is known of the nodes of a graph, in a form that can be pickled.

torch.fx pickles the code of a graph module, and traces it when it is unpickled. What the code does
not say (the names of nodes, their lines, their modules, their abstract values) is in a `NodeFacts`
beside it.
"""

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.state import ATOMIC

ATTRIBUTE = "_calque_nodes"
"""The attribute of a graph module that holds its `NodeFacts`."""
_LOST = ("origin", "nn_module_stack", "stack_trace")


class TensorFacts(NamedTuple):
    """The abstract value of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


class _Unknown(Exception):
    """A value that has no form that can be pickled."""


class NodeFacts:
    """The names and metadata of a graph's nodes, as they are when it is pickled.

    Args:
        graph: the graph; None after a copy, until the copy has a graph of its own.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        self._graph = graph
        self._rows: dict[Any, list[Any]] = {}

    def __deepcopy__(self, memo: object) -> "NodeFacts":
        return NodeFacts()

    def __getstate__(self) -> dict[str, Any]:
        rows: dict[Any, list[Any]] = defaultdict(list)
        for node in self._graph.nodes if self._graph is not None else ():
            rows[_key(node)].append((node.name, node.meta.get("origin"), *_described(node)))
        return {"_graph": None, "_rows": dict(rows)}

    def restore(self, graph: Graph, made: Callable[[TensorFacts], torch.Tensor]) -> None:
        """Set the names and metadata of the nodes of an unpickled graph.

        A node is recognized by its target, and by its place among the nodes with the same target.

        Args:
            made: creates an abstract value.
        """
        found: dict[Any, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for name in _LOST:  # the line that unpickles it
                node.meta.pop(name, None)
            found[_key(node)].append(node)
        for key, nodes in found.items():
            rows = self._rows.get(key, ())
            if len(rows) == len(nodes) or key[0] == "get_attr":
                for node, row in zip(nodes, rows):
                    _set(node, row, made)


def _set(node: Node, row: Any, made: Callable[[TensorFacts], torch.Tensor]) -> None:
    name, origin, stack, value = row
    node._rename(name)
    if origin is not None:
        node.meta["origin"] = origin
        node.meta["stack_trace"] = (
            f'  File "{origin.file}", line {origin.line}, in {origin.function}\n    {origin.text}'
        )
    if stack:
        node.meta["nn_module_stack"] = {k: (path, _found(kind)) for k, path, kind in stack}
    if value and "val" not in node.meta:
        node.meta["val"] = _mapped(value[0], TensorFacts, made)


def _key(node: Node) -> tuple[str, str]:
    target: Any = node.target
    if isinstance(target, str):
        return node.op, target
    name = getattr(target, "__qualname__", type(target).__name__)
    return node.op, f"{getattr(target, '__module__', '')}.{name}.{getattr(target, '_name', '')}"


def _described(node: Node) -> Iterator[Any]:
    """Yields the modules around a node, and a tuple with its abstract value, if there is one."""
    stack = node.meta.get("nn_module_stack", {})
    yield [(key, path, _spelled(kind)) for key, (path, kind) in stack.items()]
    try:
        yield (_mapped(node.meta["val"], torch.Tensor, _facts),) if "val" in node.meta else ()
    except _Unknown:
        yield ()


def _spelled(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def _found(name: str) -> Any:
    """Returns a class, or its name if it cannot be imported."""
    module, _, rest = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in rest.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return name.replace(":", ".")
    return found


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Returns a value with others in place of those of a class.

    Raises:
        _Unknown: there is something else in it.
    """
    if isinstance(value, kind):
        return function(value)
    if type(value) in ATOMIC or type(value) is torch.Size:
        return value
    if isinstance(value, dict):
        return {key: _mapped(part, kind, function) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_mapped(part, kind, function) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    raise _Unknown


def _facts(tensor: torch.Tensor) -> TensorFacts:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise _Unknown
    shape, stride = tuple(tensor.shape), tensor.stride()
    if not all(type(size) is int for size in (*shape, *stride)):
        raise _Unknown
    return TensorFacts(shape, stride, tensor.dtype, tensor.device, tensor.requires_grad)
