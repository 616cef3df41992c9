"""A graph whose dead code elimination keeps nodes with side effects.

torch.fx assumes that calls of methods are pure, so it removes a dead `x.add_(1)` and the caller's
tensor keeps its value. Here, nodes with effects are not dead code.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.graph.branching import cond
from calque.tracing.graph.checks import CHECKS, assign, in_place, unpack
from calque.tracing.graph.codegen import ExactLiterals
from calque.tracing.graph.node_facts import ATTRIBUTE, NodeFacts
from calque.tracing.graph.random_calls import (
    forked_state,
    manual_seed,
    of_generator,
    random_state,
    set_random_state,
)
from calque.tracing.graph.value_guards import OF_RECORDINGS
from calque.tracing.proxies.proxy import assert_fn
from calque.upstream.torch_internals import HigherOrderOperator, OpOverload, OpOverloadPacket

_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in dir(operator)
    if name.startswith("i")
    and not name.startswith(("is", "in"))
    and callable(getattr(operator, name))
    if name not in ("itemgetter", "indexOf", "inv", "invert", "index")
)
_EFFECTS = _IN_PLACE | CHECKS | {in_place, unpack, assert_fn, setattr, delattr, operator.delitem}
OF_RANDOM_STATE = frozenset((manual_seed, random_state, forked_state, set_random_state))
_EFFECTS |= OF_RANDOM_STATE | {of_generator}
_EFFECTS |= {assign} | OF_RECORDINGS
_OPERATORS = (OpOverload, OpOverloadPacket, HigherOrderOperator)


@functools.lru_cache(maxsize=4096)
def name_mutates(name: str) -> bool:
    """Returns True if, by PyTorch's naming, a method or function changes its first argument."""
    if name in ("__setitem__", "__delitem__", "__set__", "backward", "set_data"):
        return True
    if name.startswith("__"):
        return name.startswith("__i") and name not in (
            "__invert__",
            "__index__",
            "__int__",
            "__iter__",
        )
    return name.endswith("_") and not name.endswith("__")


def has_effect(node: Node, writes: bool = False) -> bool:
    """Returns True if running a node has side effects.

    Args:
        writes: whether only writes to arguments count, and no random numbers that are drawn.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> has_effect(graph.call_method("add_", (x, 1))), has_effect(graph.call_method("add", (x, 1)))
    (True, False)
    >>> has_effect(graph.call_function(operator.and_, (x, x)))
    False
    """
    if node.op == "call_method":
        return name_mutates(str(node.target))
    if node.op == "call_module":
        return node.is_impure() or _module_mutates(node)
    if node.op == "call_function":
        target: Any = node.target
        if target in _EFFECTS or "out" in node.kwargs or node.kwargs.get("inplace") is True:
            return True
        if target is cond:
            return any(map(_branch_mutates, node.args[1:3]))
        module = getattr(target, "__module__", None) or ""
        is_of_torch = module.startswith(("torch", "_")) and module != "_operator"  # it has `and_`
        if is_of_torch and name_mutates(getattr(target, "__name__", "")):
            return True
        if writes and target is not operator.setitem and not isinstance(target, _OPERATORS):
            return False  # by its name, it does not write
    return node.is_impure()


def _module_mutates(node: Node) -> bool:
    """Returns True if a module may write to its input or its buffers,
    as batch normalization does in training.
    """
    module = node.graph.owning_module.get_submodule(str(node.target))  # pyright: ignore[reportOptionalMemberAccess]
    if any(getattr(m, "inplace", False) for m in module.modules()):
        return True
    return any(True for _ in module.buffers())


def _branch_mutates(branch: Any) -> bool:
    owner = branch.graph.owning_module
    if owner is None:
        return True
    graph = owner.get_submodule(branch.target).graph
    return any(has_effect(node) for node in graph.nodes if node.op.startswith("call"))


class TracedGraph(Graph):
    """Like `torch.fx.Graph`, but `eliminate_dead_code` keeps nodes with side effects, and the
    generated code computes exactly what the nodes do.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._codegen = ExactLiterals()

    def python_code(self, root_module: str, *args: Any, **options: Any) -> Any:
        """Returns the code of the graph, and has its module pickle what the code does not say."""
        owner = self.owning_module
        if owner is not None:
            vars(owner)[ATTRIBUTE] = NodeFacts(self)
        return super().python_code(root_module, *args, **options)

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Remove nodes that are unused and have no effect; returns True if any were removed."""
        return super().eliminate_dead_code(is_impure_node or has_effect)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> "TracedGraph":
        copied = super().__deepcopy__(memo)
        copied.__class__ = TracedGraph
        return copied  # pyright: ignore[reportReturnType]
