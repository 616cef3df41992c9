"""Overlays: numbers to colour the nodes of a graph by (FLOPs, bytes, times, errors of the device).

Each function returns a dict by the id of the node, for `calque.show(graph, overlays={"FLOPs":
...})`.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.interpreter import Interpreter
from torch.fx.node import Node

from calque.comparing.naming import has_values
from calque.convert.counting import flops_of
from calque.interop.export import Exported
from calque.tracing.graph.modes import left_on_error
from calque.upstream.torch_internals import pytree, tree_leaves
from calque.view.graph import TensorLook, ViewGraph
from calque.view.operators import graph_module_of, lowered
from calque.view.readers import read
from calque.view.readers.fx import is_check


def flops(graph: object) -> dict[str, float]:
    """Returns the floating-point operations of each node, in matrix products and convolutions.

    They are counted for the ATen operators of the node, with the formulas of
    `torch.utils.flop_counter`. Nodes whose operators cannot be found from shapes are left out.

    Raises:
        TypeError: the graph has no operators.
        ValueError: no shapes in it are known.

    >>> import calque, torch
    >>> flops(calque.trace(torch.nn.Linear(3, 2), torch.ones(5, 3)))["linear"]
    60.0
    """
    found: dict[str, float] = {}
    for name, one in lowered(graph).items():
        for node in one.operators:
            count = flops_of(node)
            if count is not None:
                found[name] = found.get(name, 0.0) + float(count)
    return found


def memory(graph: object) -> dict[str, float]:
    """Returns the bytes of the tensors that each node takes and returns, from their shapes.

    Nodes with unknown shapes are left out.

    >>> import calque, torch
    >>> memory(calque.trace(lambda x: x + 1, torch.ones(5)))["add"]
    40.0
    """
    view = graph if isinstance(graph, ViewGraph) else read(graph)
    sizes = {node.id: _size(node.outputs) for node in view.nodes}
    taken: dict[str, float] = {}
    for edge in view.edges:
        taken[edge.target] = taken.get(edge.target, 0.0) + sizes[edge.source]
    calls = (node for node in view.nodes if node.kind in ("call", "module"))
    found = {n.id: sizes[n.id] + taken.get(n.id, 0.0) + _held(n.kind, n.parameters) for n in calls}
    return {id: size for id, size in found.items() if not math.isnan(size)}


def _held(kind: str, parameters: tuple[tuple[str, TensorLook], ...]) -> float:
    """Returns the bytes of a layer's own weights; the weights of other nodes are nodes."""
    return _size(tuple(look for _, look in parameters)) if kind == "module" else 0.0


def _size(looks: tuple[TensorLook, ...]) -> float:
    return float(sum(map(_bytes, looks)))


def _bytes(look: TensorLook) -> float:
    count = 1
    for size in look.shape:
        if not isinstance(size, int):
            return math.nan
        count *= size
    return float(count * getattr(torch, look.dtype).itemsize)


def times(graph: object, *args: Any, repeat: int = 3) -> dict[str, float]:
    """Returns the seconds that each node takes when run separately: the minimum of several runs.

    Args:
        graph: a graph module, a recording or an exported program.
        *args: the inputs of the graph.
        repeat: the number of runs.
    """
    run = _Times(graph_module_of(graph))
    with torch.no_grad(), left_on_error(run):
        for _ in range(repeat):
            run.run(*_inputs(graph, args))
    return run.shortest


class _Times(Interpreter):
    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.shortest: dict[str, float] = {}

    def run_node(self, n: Node) -> Any:
        if not n.op.startswith("call"):
            return super().run_node(n)
        begin = time.perf_counter()
        found = super().run_node(n)
        pytree.tree_map_only(torch.Tensor, _await, found)
        took = time.perf_counter() - begin
        self.shortest[n.name] = min(took, self.shortest.get(n.name, math.inf))
        return found


def _await(tensor: torch.Tensor) -> None:
    if tensor.device.type == "jax":
        torch.jax.synchronize()


def max_errors(graph: object, *args: Any) -> dict[str, float]:
    """Returns the error of each node on the device relative to the CPU, for the CPU's inputs.

    This is the largest difference of an element, divided by the largest element of the CPU's
    result. Nodes that draw random numbers, write in place, return no floating-point numbers or
    return uninitialized memory (`torch.empty`) are left out.

    Args:
        graph: a graph module, a recording or an exported program.
        *args: the inputs of the graph.
    """
    run = _Errors(graph_module_of(graph))
    with torch.no_grad(), left_on_error(run):
        run.run(*_moved(_inputs(graph, args), "cpu"))
    return run.errors


def _inputs(graph: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the graph module's inputs, which include the parameters of an exported program."""
    if isinstance(graph, Exported):
        graph = graph.exported_program
    if not isinstance(graph, ExportedProgram):
        return args
    given = iter(tree_leaves(args))
    found: list[Any] = []
    for spec in graph.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            found.append(next(given))
        else:
            held = graph.constants if spec.target in graph.constants else graph.state_dict
            found.append(held[str(spec.target)])
    return tuple(found)


class _Errors(Interpreter):
    """Runs a graph on the CPU, and each node on the device as well."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.errors: dict[str, float] = {}

    def run_node(self, n: Node) -> Any:
        if not n.op.startswith("call"):
            return _moved(super().run_node(n), "cpu")
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if is_check(n):
            return None
        there = _moved((args, kwargs), "jax")
        state = torch.get_rng_state()
        found = self._on("cpu", n, args, kwargs)
        if torch.equal(state, torch.get_rng_state()) and not _writes(n) and has_values(n):
            self._compare(n, found, self._on("jax", n, *there))
        return found

    def _on(self, device: str, n: Node, args: Any, kwargs: Any) -> Any:
        if n.op == "call_module":
            module: Any = self.fetch_attr(str(n.target))
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            return torch.func.functional_call(module, _moved(held, device), args, kwargs)
        call: Callable[..., Any] = getattr(self, n.op)
        return call(n.target, *_moved((args, kwargs), device))

    def _compare(self, n: Node, found: object, other: object) -> None:
        pairs = zip(tree_leaves(found), tree_leaves(other))
        errors = [_error(a, b.cpu()) for a, b in pairs if _is_floating(a) and a.numel()]
        if errors:
            self.errors[n.name] = max(errors)


def _moved(value: object, device: str) -> Any:
    """Moves tensors to a device, and replaces device arguments by it."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device(device)
        return leaf.detach().to(device) if leaf.device.type != device else leaf

    return pytree.tree_map_only((torch.Tensor, torch.device), moved, value)


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs()).max().item()
    largest = torch.where(a.isfinite(), a.abs(), 0.0).max().item()
    return difference / largest if largest else difference


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _writes(n: Node) -> bool:
    name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
    schema = getattr(n.target, "_schema", None)
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or bool(schema and schema.is_mutable) or "inplace" in n.kwargs
