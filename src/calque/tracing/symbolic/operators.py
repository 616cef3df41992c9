"""Calls of `torch.cond` and `torch.while_loop` in a traced program."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import Node

from calque.tracing.core.active import current_trace
from calque.tracing.core.patching import Patches
from calque.tracing.core.refusals import refuse_because
from calque.tracing.graph.branching import Branch, while_loop
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.proxies.proxy import has_proxy
from calque.upstream.torch_internals import (
    HigherOrderOperator,
    cond_op,
    eager_transforms,
    higher_order_utils,
    vmap,
    while_loop_op,
)

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer


def hold_operators(patches: Patches) -> None:
    """Patch PyTorch's operators that take functions, so that the trace sees them."""
    patches.hold(torch, "cond", _traced_cond)
    patches.hold(torch, "while_loop", _traced_while_loop)
    patches.hold(higher_order_utils, "_hop_compile_and_call", _refused)
    patches.hold(eager_transforms, "_wrap_for_grad", _refused)
    patches.hold(eager_transforms, "_jvp_with_argnums", _refused)
    patches.hold(vmap, "_add_batch_dim", _refused)
    for graph_operator in (cond_op, while_loop_op):
        patches.hold(type(graph_operator), "__call__", _unchecked)


def _tracer() -> Any:
    trace = current_trace()
    tracer = None if trace is None else trace.tracer
    return tracer if getattr(tracer, "path", None) is not None else None


def _is_in_loop() -> bool:
    """Returns True if the body or the condition of a loop is being traced."""
    trace = current_trace()
    return trace is not None and getattr(trace.tracer, "loops", 0) > 0


def _traced_cond(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        if _tracer() is None:
            if _is_in_loop() and has_proxy((pred,)):
                refuse_because(
                    current_trace().tracer,
                    "torch.cond is called in a loop of torch.while_loop, where a trace follows no "
                    "branches",
                    'Use torch.where. calque.trace(..., tracer="record") follows one run.',
                )
            return original(pred, true_fn, false_fn, operands)
        return true_fn(*operands) if pred else false_fn(*operands)

    return cond


def _traced_while_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
        if (tracer := _tracer()) is None:
            if not _is_in_loop():
                return original(cond_fn, body_fn, carried_inputs)
            tracer = current_trace().tracer
        return record_loop(tracer, cond_fn, body_fn, tuple(carried_inputs))

    return loop


def _refused(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer = _tracer()
        if tracer is not None and has_proxy((*args, *kwargs.values())):
            refuse_because(
                tracer,
                "a PyTorch operator that takes functions is called on traced tensors",
                "Only torch.cond and torch.while_loop can be traced, under these names. For "
                "others, make the function around it a leaf: calque.tracing.wrap.",
            )
        return original(*args, **kwargs)

    return call


def _unchecked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Records an operator in a graph's code as a node when the graph is unpickled, because
    PyTorch's check of the operands would refuse proxies.
    """

    @functools.wraps(original)
    def call(called: HigherOrderOperator, *args: Any, **kwargs: Any) -> Any:
        if current_trace() is not None and has_proxy((*args, *kwargs.values())):
            return HigherOrderOperator.__call__(called, *args, **kwargs)
        return original(called, *args, **kwargs)

    return call


def record_loop(
    tracer: "SymbolicTracer", test: Any, body: Any, carried: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Records the node for a loop.

    Args:
        test, body: functions of the carried tensors; they return the condition, and new tensors of
            the same number and kinds.

    Raises:
        TraceError: the body returns tensors that differ from those it takes.
    """
    test_graph, _ = _subgraph(tracer, test, carried)
    body_graph, results = _subgraph(tracer, body, carried)
    start: list[Any] = [tracer.create_arg(value) for value in carried]
    kept = [node.meta.get("val") for node in start]
    if len(results) != len(kept) or not all(map(_alike, kept, results)):
        refuse_because(
            tracer,
            f"the body of torch.while_loop takes {_described(kept)} but returns "
            f"{_described(results)}",
            "Return as many tensors as the body takes, of the same shapes and dtypes.",
        )
    captured: dict[Node, None] = {}
    branches = []
    for name, graph in (("while_test_", test_graph), ("while_body_", body_graph)):
        captured.update(dict.fromkeys(_lift(tracer, graph)))
        branches.append((name, graph))
    modules = []
    for name, graph in branches:
        _give(graph, list(captured), len(carried))
        target = tracer.get_fresh_qualname(name)
        tracer.keep(target, Branch.of(graph, tracer.resolve))
        modules.append(tracer.create_node("get_attr", target, (), {}))
    call = tracer.create_node("call_function", while_loop, (*modules, start, list(captured)), {})
    return tuple(_result(tracer, call, i, val) for i, val in enumerate(kept))


def _result(tracer: "SymbolicTracer", call: Node, index: int, val: object) -> Any:
    part = tracer.create_node("call_function", operator.getitem, (call, index), {})
    if val is not None:
        part.meta["val"] = val
    return tracer.tensor_proxy(part)


def _subgraph(
    tracer: "SymbolicTracer", function: Callable[..., Any], carried: tuple[Any, ...]
) -> tuple[TracedGraph, list[Any]]:
    """Returns a function of the carried tensors as a subgraph, and its results' abstract values."""
    hooks = current_trace()
    outer, path, proxies = tracer.graph, tracer.path, hooks.proxies
    graph = tracer.graph = TracedGraph(tracer_cls=type(tracer))
    tracer.path, hooks.proxies = None, dict(proxies)
    tracer.loops += 1
    try:
        inputs = []
        for i, value in enumerate(carried):
            node = tracer.create_node("placeholder", f"carried_{i}", (), {})
            if "val" in value.node.meta:
                node.meta["val"] = value.node.meta["val"]
            inputs.append(tracer.tensor_proxy(node))
        given = function(*inputs)
        results = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        lowered: Any = tracer.create_arg(results)  # a tuple, like the results
        graph.output(lowered)
    finally:
        tracer.graph, tracer.path, hooks.proxies = outer, path, proxies
        tracer.loops -= 1
    for node in [n for n in tracer.optional if n.graph is graph]:
        del tracer.optional[node]
    return graph, [n.meta.get("val") if isinstance(n, Node) else n for n in lowered]


def _lift(tracer: "SymbolicTracer", graph: TracedGraph) -> list[Node]:
    """Returns the outer graph's nodes that a subgraph uses. Tensors of modules are read in the
    outer graph.
    """
    for node in graph.find_nodes(op="get_attr"):
        if isinstance(tracer.resolve(node.target), torch.Tensor):
            outside = tracer.create_node("get_attr", node.target, (), {})
            outside.meta.update(node.meta)
            node.replace_all_uses_with(outside)
            graph.erase_node(node)
    found = [n for node in graph.nodes for n in node.all_input_nodes if n.graph is not graph]
    return list(dict.fromkeys(found))


def _give(graph: TracedGraph, captured: list[Node], after: int) -> None:
    """Create placeholders for nodes of the outer graph, after the first `after` ones."""
    last = list(graph.nodes)[after - 1]
    taken = {node.target for node in graph.find_nodes(op="placeholder")}
    for outside in captured:
        name = outside.name
        while name in taken:  # that of an outer loop
            name = f"outer_{name}"
        taken.add(name)
        with graph.inserting_after(last):
            last = graph.placeholder(name)
        last.meta = {k: v for k, v in outside.meta.items() if k in ("val", "origin")}
        for user in list(outside.users):
            if user.graph is graph:
                user.replace_input_with(outside, last)


def _alike(before: object, after: object) -> bool:
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return before is None or after is None
    return (before.shape, before.dtype) == (after.shape, after.dtype)


def _described(values: Sequence[Any]) -> str:
    return ", ".join(
        f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}"
        if isinstance(v, torch.Tensor)
        else "a tensor"
        if v is None
        else repr(v)
        for v in values
    )
