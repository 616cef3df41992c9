"""Traced numbers as arguments of PyTorch's C++ that want plain floats: the `eps` of
`F.layer_norm`, the `margin` of a loss.

C++ gets another float in its place, and hands it on to operators, now or in the formula of a
gradient, where calque's kernels recognize it (`calque.device.kernels.python_numbers`). It does so
only for functions in which C++ does nothing else with the number (`number_probes`); with which
numbers it compares equally, is guarded.
"""

from collections.abc import Callable
from typing import Any

import torch

from calque.device.kernels.composites import is_plain
from calque.device.kernels.python_numbers import stand_for
from calque.program.function_modes import dispatches, without_dispatch
from calque.program.moving_indexes import may_move
from calque.program.number_errors import NumberNeeded
from calque.program.number_probes import Span, hands_on
from calque.program.traced_numbers import TracedFloat
from calque.upstream.torch_internals import pytree


def _is_traced(value: Any) -> bool:
    node = value.node if type(value) is TracedFloat else None
    return node is not None and node.in_python and node.known


def takes_numbers(args: Any, kwargs: Any) -> bool:
    """Returns True if some arguments are traced numbers."""
    return any(type(value) is TracedFloat for value in (*args, *kwargs.values()))


def called(func: Any, args: Any, kwargs: Any, mode: Any) -> Any:
    """Returns the result of a function of PyTorch, some of whose arguments are traced numbers.

    Args:
        func: the function.
        args, kwargs: its arguments.
        mode: the mode that has seen the call, and sees what a function in Python calls.
    """
    if dispatches(func) and str(func.__module__).startswith("torch."):
        with mode:
            return without_dispatch(func)(*args, **kwargs)
    given = [one for one in (*args, *kwargs.values()) if type(one) is TracedFloat]
    watch = given[0].node.watch
    needed = set(watch.needed)
    try:
        return func(*args, **kwargs)
    except NumberNeeded:
        found = _handed(func, args, kwargs)
        if found is None:
            raise
        args, kwargs = found
    watch.needed = needed
    return func(*args, **kwargs)


def _handed(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Returns arguments with floats instead of traced numbers; None if C++ cannot take them."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    traced = {i: one for i, one in enumerate(leaves) if type(one) is TracedFloat}
    if not all(map(_is_traced, traced.values())) or any(x.node.integral for x in traced.values()):
        return None
    if not tensors or not all(map(may_move, tensors)) or not is_plain(tensors):
        return None
    fixed = [float(one) for one in leaves if type(one) in (int, float)]
    nodes = {i: one.node for i, one in traced.items()}
    values = {i: float(node.compute()) for i, node in nodes.items()}
    spans: dict[int, Span] = {}
    for i, node in nodes.items():
        guarded = _spanned(node, fixed)
        others = [(values[i] + value) / 2 for j, value in values.items() if j != i]
        span = None if guarded is None else Span.around(values[i], [*fixed, *others])
        if span is None:
            leaves[i] = node.pin()
        else:
            spans[i] = span
    _guard_order(list(nodes.values()))
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    if spans and not hands_on(func, args, kwargs, spans):
        return None
    for i, span in spans.items():
        leaves[i] = stand_for(nodes[i], span.number())
    return pytree.tree_unflatten(leaves, spec)


def _spanned(node: Any, others: list[float]) -> Span | None:
    """Returns the span of a number, which is guarded; None for a number that C++ may ask for."""
    compute = node.compute
    span = Span.around(compute(), others)
    node.watch.answers.append((lambda: Span.around(compute(), others) == span, True))
    return span


def _guard_order(nodes: list[Any]) -> None:
    """Guard which of some numbers are less than others, with which C++ may compare them."""
    computes = [node.compute for node in nodes]

    def order() -> list[bool]:
        values = [compute() for compute in computes]
        return [a < b for a in values for b in values]

    found = order()
    if len(nodes) > 1:
        nodes[0].watch.answers.append((lambda: order() == found, True))
