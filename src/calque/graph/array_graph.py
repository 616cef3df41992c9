"""Runs a functional ATen graph on arrays, with a rule of the op table for each node.

Tensors on the device have numeric sizes, but arrays may have JAX's symbolic dimensions, so that a
graph becomes one program for all sizes.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
import torch
from jax import Array
from jax.errors import ConcretizationTypeError
from torch import fx

from calque.device.kernels.applying import UNUSED, apply
from calque.device.kernels.binding import is_written, overload_of, traced_parameters
from calque.device.kernels.meta_check import Outline
from calque.device.memory import rng
from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.device.runtime.dtypes import TO_NUMPY, to_numpy, to_torch
from calque.errors import CalqueError, TraceError, UnsupportedOpError
from calque.graph.interpreter import Nodes, on_device
from calque.ops.create.in_graphs import ARRAY_OPS, view_rule
from calque.ops.table.facts import canonical, operators_with
from calque.ops.table.real_sizes import RealSize, as_array, truncated
from calque.ops.table.registry import RULES, Rule
from calque.upstream.jax_internals import (
    InconclusiveDimensionOperation,
    is_symbolic_dim,
    max_dim,
    min_dim,
)
from calque.upstream.torch_internals import OpOverload, pytree, tree_leaves

_OF_SIZES = (
    *(InconclusiveDimensionOperation, ConcretizationTypeError),  # of JAX
    *(TypeError, NotImplementedError),
)
"""Errors that a rule may raise because a size is dynamic."""


def _of_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a rounding function that leaves sizes unchanged."""
    return lambda x, *digits: x if is_symbolic_dim(x) else function(x, *digits)


def _as_float(x: Any) -> Any:
    """Returns a size as a real number."""
    return RealSize(x) if is_symbolic_dim(x) else float(x)


def _quotient(x: Any, divisor: Any) -> Any:
    return (RealSize(x) if is_symbolic_dim(x) else x) / divisor


_SYMBOLIC: dict[Any, Callable[..., Any]] = {
    torch.sym_max: max_dim,
    torch.sym_min: min_dim,
    torch.sym_float: _as_float,
    torch.sym_int: _of_whole(truncated),
    math.trunc: _of_whole(truncated),
    round: _of_whole(round),
    operator.truediv: _quotient,
    math.floor: _of_whole(math.floor),
    math.ceil: _of_whole(math.ceil),
}
"""Functions of sizes that have other names for JAX's dimensions."""


def _is_arithmetic(target: object) -> bool:
    return getattr(target, "__module__", None) == "_operator"


class ArrayNodes(Nodes):
    """Runs the nodes of a functional graph on arrays, which may have symbolic dimensions.

    Raises:
        TraceError: a rule needs a size that is symbolic; names the operator and the user's line.
        UnsupportedOpError: an operator has no rule, and its sizes are symbolic.
    """

    def call_higher_order(self, rule: Any, args: Any, kwargs: Any) -> Any:
        """Returns a rule of `higher_order`."""
        return rule(self.function_of, *args, **kwargs)

    @staticmethod
    def function_of(graph: fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
        """Returns a subgraph as a function of arrays and sizes that returns a tuple of them."""
        nodes = ArrayNodes(graph)
        return lambda *values: tuple(nodes.results(values))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Returns a constant of the graph."""
        value = super().get_attr(target, args, kwargs)
        return read(value) if isinstance(value, torch.Tensor) else value

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        """Returns the arguments of a node; only Python's own functions accept a `RealSize`."""
        found = super().fetch_args_kwargs_from_env(n)
        if n.op == "call_function" and (n.target in _SYMBOLIC or _is_arithmetic(n.target)):
            return found
        return pytree.tree_map_only(RealSize, as_array, found)

    def run_node(self, n: fx.Node) -> Any:
        """Like the base class's, but verifies that a result has its dtype in the graph."""
        result = super().run_node(n)
        if n.op == "call_function":
            _verify(n, result)
        return result

    def call_operator(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls an operator, or a function of sizes."""
        is_operator = isinstance(target, OpOverload)
        try:
            if is_operator:
                return call(target, args, kwargs)
            return (_SYMBOLIC.get(target) or target)(*args, **kwargs)
        except CalqueError:
            raise
        except _OF_SIZES as error:
            computes_sizes = not is_operator and any(isinstance(a, Array | RealSize) for a in args)
            if not computes_sizes and not any(map(_is_dynamic, tree_leaves((tuple(args), kwargs)))):
                raise
            first = str(error).strip().partition("\n")[0]
            name = target.name() if is_operator else getattr(target, "__name__", str(target))
            raise TraceError(
                f"{name} needs static sizes, but one of its sizes is dynamic: {first}\nLeave that "
                "dimension out of dynamic_shapes, or give it bounds with torch.export.Dim(name, "
                "min=..., max=...)."
            ) from None


def call(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls an ATen operator on arrays: by its rule, or on the device if all sizes are numbers."""
    name = op.name()
    drawn = _of_shapes().get(name)
    if drawn is not None:
        like, *_ = args
        dtype = kwargs.get("dtype") or to_torch(like.dtype)
        return call(drawn, [like.shape], {"dtype": dtype})
    simple = ARRAY_OPS.get(name)
    rule = RULES.get(name) or view_rule(name)
    if simple is None and (rule is None or rule.mutates or not _is_plain(rule)):
        return _on_device(op, args, kwargs)
    names = [a.name for a in op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given = {n: v for n, v in given.items() if n not in UNUSED}
    default = TO_NUMPY[torch.get_default_dtype()]
    if simple is not None:
        given = {n: _argument(v, False) for n, v in given.items()}
        leading = [given.pop(n) for n in names[: len(args)] if n in given]
        return simple(*leading, **given)
    assert rule is not None
    numbers = _traced(rule)
    parameters = rule.parameters
    given = {n: _argument(v, n in numbers) for n, v in given.items()}
    leading = []
    for parameter in parameters:
        if parameter not in given:
            break
        leading.append(given.pop(parameter))
    given = {n: v for n, v in given.items() if n in parameters}
    key = rng.draw() if rule.random else None
    return apply(rule, key, leading, given, default, _outline(op))


@cache
def _of_shapes() -> dict[str, OpOverload]:
    """Handles random operators that the device composes of other operators."""
    return {canonical(like): overload_of(name) for name, like in operators_with("like").items()}


def _is_plain(rule: Rule) -> bool:
    """Returns True if a rule takes only arguments and a key (see `Rule`)."""
    return not (callable(rule.random) or callable(rule.data_dependent) or rule.data_dependent)


@cache
def _outline(op: OpOverload) -> Outline:
    return Outline(op)


@cache
def _traced(rule: Rule) -> frozenset[str]:
    return (traced_parameters(rule) - rule.static) | rule.dynamic


def _argument(value: object, is_traced: bool) -> Any:
    """Returns an argument in the form for rules: NumPy dtypes, weakly typed numbers for tensors."""
    if isinstance(value, torch.dtype):
        return to_numpy(value)
    if isinstance(value, list | tuple):
        return [_argument(item, is_traced) for item in value]
    if is_traced and (isinstance(value, int | float | complex) or is_symbolic_dim(value)):
        return jnp.asarray(value)
    return value


def _on_device(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls an operator without a plain rule on tensors of the device."""
    if any(map(_is_dynamic, tree_leaves((tuple(args), kwargs)))):
        raise UnsupportedOpError(
            f"{op.name()} has no rule for dynamic sizes: leave that dimension out of dynamic_shapes"
        )
    if any(is_written(argument) for argument in op._schema.arguments):
        raise UnsupportedOpError(f"{op.name()} writes to an argument: the graph is not functional")
    args, kwargs = pytree.tree_map_only(Array, wrap, (tuple(args), kwargs))
    args, kwargs = pytree.tree_map_only(torch.device, on_device, (args, kwargs))
    return pytree.tree_map_only(torch.Tensor, read, op(*args, **kwargs))


def _is_dynamic(value: object) -> bool:
    sizes = value.shape if isinstance(value, Array) else (value,)
    return any(is_symbolic_dim(size) for size in sizes)


def _verify(node: fx.Node, result: object) -> None:
    """Raise TraceError if a rule's dtype or shape differs from PyTorch's."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(result, Array):
        return  # used parts of a tuple have their own nodes
    sizes = [n if isinstance(n, int) else m for n, m in zip(value.shape, result.shape)]
    if result.dtype != to_numpy(value.dtype) or result.shape != tuple(sizes):
        raise TraceError(
            f"{node.target} returned {result.dtype}{list(result.shape)}, but PyTorch returns "
            f"{value.dtype}{list(value.shape)}"
        )
