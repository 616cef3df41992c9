"""`torch.cond`, `torch.while_loop`, `scan` and `map` called in a jitted function.

Outside a trace, PyTorch captures the bodies with dynamo, which does not run under a mode such as
that of a trace. In a jitted program, the bodies are traced directly, and become JAX's control flow.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from calque.device.memory.cell import active, cell_of, is_whole
from calque.device.memory.wrapping import wrap
from calque.errors import TraceError
from calque.graph.higher_order import HIGHER_ORDER
from calque.interop.from_jax import from_jax
from calque.jitting.control_flow.choices import BranchView, choose
from calque.jitting.control_flow.loops import arrays_of, loop
from calque.jitting.reachable import Reachable
from calque.program.lifting import Lifting
from calque.program.trees import is_tensor
from calque.upstream.torch_internals import pytree

Tensor = torch.Tensor


class _Body(nn.Module):
    """A function of pytrees as a module from tensors to a tuple.

    Attributes:
        closed_over: the tensors that the function can reach other than its arguments.
        results: how to build the function's result from the tuple, known after a call.
    """

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        super().__init__()
        self._function = (function,)  # in a tuple, so that it is not a submodule
        self._arguments = arguments
        self.closed_over = [t for t in Reachable(function).tensors.values() if is_tensor(t)]

    def forward(self, *leaves: Any) -> tuple[Any, ...]:
        """Call the function."""
        (function,) = self._function
        found = function(*pytree.tree_unflatten(list(leaves), self._arguments))
        results, self.results = pytree.tree_flatten(found)
        return tuple(results)


def cond(condition: Any, true: Any, false: Any, operands: Sequence[Any]) -> Any:
    """Implements `torch.cond`."""
    if not isinstance(condition, Tensor):
        return (true if condition else false)(*operands)
    leaves, spec = pytree.tree_flatten(tuple(operands))
    branches = _Body(true, spec), _Body(false, spec)
    found = choose(condition, *branches, leaves)
    return pytree.tree_unflatten(list(found), branches[0].results)


def while_loop(test: object, body: object, carried: Sequence[Any], captured: Sequence[Any]) -> Any:
    """Implements `torch.while_loop`."""
    start = [v if isinstance(v, Tensor) else torch.tensor(v, device="jax") for v in carried]
    _, spec = pytree.tree_flatten((*carried, *captured))
    return loop(_Body(test, spec), _Body(body, spec), start, captured)


def scan(combine: object, init: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any]) -> Any:
    """Implements `scan`."""
    return _by_rule("scan", combine, (init, xs), captured)


def map_impl(
    function: object, xs: Sequence[Any], captured: Sequence[Any], mutated_arg_indices: str = ""
) -> Any:
    """Implements `map`."""
    if mutated_arg_indices:  # later releases than PyTorch 2.13
        raise NotImplementedError("torch.map: the function writes to its arguments")
    return _by_rule("map_impl", function, (xs,), captured)


def _by_rule(
    name: str, function: Any, given: tuple[Sequence[Any], ...], captured: Sequence[Any]
) -> Any:
    """Returns an operator that is a function of arrays, with JAX's gradient."""
    rule, outer = HIGHER_ORDER[name], active.trace
    assert isinstance(outer, Lifting)
    leaves = (*(value for values in given for value in values), *captured)
    body = _Body(function, pytree.tree_flatten(leaves)[1])
    closed_over = [t for t in body.closed_over if t.requires_grad]

    def run(given: Any, captured: Any, closed_over: Any) -> Any:
        def of(body: _Body) -> Callable[..., Any]:
            def call(*values: Any) -> Any:
                nested = BranchView(outer, dict(zip(cells, closed_over)), None)
                return arrays_of(nested, lambda: body(*map(_lifted, values)))

            return call

        return rule(of, body, *given, captured)

    cells = [cell_of(tensor) for tensor in closed_over]
    if len(set(cells)) < len(cells) or not all(map(is_whole, cells, closed_over)):
        raise TraceError(
            "the body of a scan or map closes over a view that requires a gradient, or over one "
            "tensor in two ways.\nClone it first, or pass it as an argument."
        )
    found = from_jax(run)(given, list(captured), closed_over)
    return pytree.tree_unflatten(list(found), body.results)


def _lifted(value: Any) -> Any:
    return wrap(value) if hasattr(value, "aval") else value
