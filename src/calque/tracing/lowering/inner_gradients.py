"""Gradients that a program computes: `torch.autograd.grad(loss, x, create_graph=True)`.

Autograd sees the tensors beneath functionalization, and its operators are recorded like those of
any other call, so that they can be differentiated again.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.graph import Graph
from torch.fx.graph_module import GraphModule

from calque.tracing.graph.branching import Branch
from calque.tracing.lowering import explained
from calque.tracing.lowering.functional_forms import copied
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    HigherOrderOperator,
    TorchDispatchMode,
    from_functional_tensor,
    functionalize_commit_update,
    functionalize_replace,
    is_functional_tensor,
    pytree,
    sync_functional,
    temporarily_pop_interpreter_stack,
)

_DETACH = torch.ops.aten.detach.default
_SAVED = "calque.saved_for_backward"
_differentiated_again: ContextVar[bool] = ContextVar("differentiated_again", default=False)
"""True while autograd computes gradients that can be differentiated again."""


def computes_gradients(graph: Graph) -> bool:
    """Returns True if a program computes gradients with `torch.autograd.grad`."""
    return bool(graph.find_nodes(op="call_function", target=torch.autograd.grad))


def refuse_gradients_in_branches(module: GraphModule) -> None:
    """Raise if a program computes gradients in an `if` on a tensor, or in a loop on tensors.

    Raises:
        TraceError: names the line.
    """
    for branch in module.modules():
        graph = branch.graph if isinstance(branch, Branch) else None
        for node in (
            graph.find_nodes(op="call_function", target=torch.autograd.grad) if graph else ()
        ):
            raise explained.computes_in_branch(node.meta.get("origin"))


def gradients(*args: Any, **kwargs: Any) -> Any:
    """As `torch.autograd.grad`, for the tensors of `torch.func.functionalize` too."""
    level = torch_c.functorch.maybe_current_level()
    inner_args, inner_kwargs = pytree.tree_map_only(torch.Tensor, _beneath, (args, kwargs))
    keeps_graph = bool(args[4] if len(args) > 4 else kwargs.get("create_graph"))
    again = _differentiated_again.set(keeps_graph)
    try:
        with temporarily_pop_interpreter_stack() if level is not None else contextlib.nullcontext():
            found = torch.autograd.grad(*inner_args, **inner_kwargs)
    finally:
        _differentiated_again.reset(again)
    if level is not None:
        wrap = torch_c.functorch._wrap_functional_tensor
        found = tuple(each if each is None else wrap(each, level) for each in found)
    return found if keeps_graph else pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, found)


def copied_into(target: Any, value: Any) -> torch.Tensor | None:
    """Copies a value into a tensor of `torch.func.functionalize`, so that autograd sees it beneath.

    For `aten.copy`, the form without writes that PyTorch uses, autograd has no formula.

    Returns:
        The tensor; None if nothing was done.
    """
    is_plain = not isinstance(target, torch.Tensor) or not is_functional_tensor(target)
    if is_plain or not isinstance(value, torch.Tensor):
        return None
    level = torch_c.functorch.maybe_current_level()
    with temporarily_pop_interpreter_stack():
        made = copied(_beneath(target), _beneath(value))
    if made is NotImplemented or level is None:
        return None
    functionalize_replace(target, made)
    functionalize_commit_update(target)
    sync_functional(target)
    return target


def item_set(target: Any, key: Any, value: Any) -> bool:
    """As `copied_into`, for `target[key] = value`; returns False if nothing was done."""
    keys = key if isinstance(key, tuple) else (key,)
    is_view = all(type(part) in (int, slice, type(None), type(...)) for part in keys)
    if not is_view or not isinstance(value, torch.Tensor):
        return False
    part = target[key]
    while value.dim() > part.dim() and value.shape[0] == 1:  # as PyTorch does
        value = value[0]
    return copied_into(part, value) is not None


def of_autograd(tensor: torch.Tensor, name: str) -> Any:
    """Returns an attribute such as `requires_grad`, also of a tensor of `torch.func.functionalize`,
    which does not know it itself.
    """
    return getattr(_beneath(tensor), name)


def require_gradient(tensor: torch.Tensor) -> None:
    """Has a new leaf require a gradient, so that `gradients` can be computed for it."""
    is_functional = is_functional_tensor(tensor)
    with temporarily_pop_interpreter_stack() if is_functional else contextlib.nullcontext():
        _beneath(tensor).requires_grad_()


def _beneath(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor that a tensor of `torch.func.functionalize` stands for."""
    if not is_functional_tensor(tensor):
        return tensor
    sync_functional(tensor)
    return from_functional_tensor(tensor)


@contextlib.contextmanager
def noticing_saved_results(graph: Graph) -> Iterator[None]:
    """A context manager that marks where autograd saves the result of an operator, if the program
    computes gradients.

    `make_fx` records that as an `aten.detach`, which the program does not contain, and through
    which no second gradient would flow.
    """
    with _Marking() if computes_gradients(graph) else contextlib.nullcontext():
        yield


def without_saved_results(found: GraphModule) -> None:
    """Removes these operators from the result of `make_fx`."""
    for node in found.graph.find_nodes(op="call_function", target=_DETACH):
        if _SAVED in node.meta:
            node.replace_all_uses_with(node.args[0])
            found.graph.erase_node(node)


class _Marking(TorchDispatchMode):
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator) and _differentiated_again.get():
            raise explained.differentiates_branch()
        result = func(*args, **(kwargs or {}))
        if func is _DETACH and not torch_c.dispatch_tls_is_dispatch_key_excluded(_IN_AUTOGRAD):
            mode = get_proxy_mode()
            if mode is not None:
                next(iter(reversed(mode.tracer.graph.nodes))).meta[_SAVED] = True
        return result


_IN_AUTOGRAD = torch_c.DispatchKey.ADInplaceOrView
"""Excluded where an operator of the program runs, but not where autograd calls one itself."""
