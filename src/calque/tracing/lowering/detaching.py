"""Inserts `aten.detach` where autograd does not record the program.

Operators below autograd ignore the gradient mode. So where gradients are off, the operands of
writes are detached. Within a layer, whose blocks are not nodes of the graph, so are the results of
its calls.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.purity import name_mutates
from calque.tracing.lowering.complex_parts import of_pairs
from calque.tracing.lowering.composites import method_here
from calque.tracing.lowering.inner_gradients import copied_into, item_set
from calque.upstream import torch_c
from calque.upstream.torch_internals import pytree


class DetachingMode(TorchFunctionMode):
    """Detaches tensors through which no gradient flows.

    Attributes:
        in_layer: whether a layer is running.
        frozen: the `id` of each member of the graph that requires no gradient.
        computes_gradients: whether the program computes gradients.
        takes_pairs: whether the program writes to complex tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_layer = False
        self.frozen: set[int] = set()
        self.computes_gradients = False
        self.takes_pairs = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        func = method_here(func)
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ == "data":
            return args[0].detach()
        if torch_c.is_grad_enabled():
            self._refuse_renormalization(name, args, kwargs)
            if self.computes_gradients and (done := _copied(name, args)) is not None:
                return done
            if self.takes_pairs:
                found = of_pairs(func, name, args, kwargs)
                return func(*args, **kwargs) if found is NotImplemented else found
            return func(*args, **kwargs)
        given = args
        if name_mutates(name) and args:
            args = (args[0], *_detached(args[1:]))
            kwargs = _detached(kwargs)
        elif "out" in kwargs:
            args, kwargs = _detached(args), {**_detached(kwargs), "out": kwargs["out"]}
        result = func(*args, **kwargs)
        is_old = any(result is each for each in (*given, *kwargs.values()))
        return _detached(result) if self.in_layer and not is_old else result

    def _refuse_renormalization(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Refuse `max_norm`, because autograd does not see its write to the weights."""
        if kwargs.get("max_norm") is None or not name.startswith("embedding"):
            return
        if id(args[1]) not in self.frozen:
            raise SymbolicTraceError(
                f"{name} with max_norm writes to its weights where autograd does not see it, but "
                "the gradient of the operators would include that write.\nLower within "
                "torch.no_grad() if the graph is not differentiated, or use the graph as it is."
            )


def _copied(name: str, args: tuple[Any, ...]) -> Any:
    """Does what a call that copies a tensor does; returns None for other calls."""
    if name == "__setitem__" and len(args) == 3:
        return ... if item_set(*args) else None
    return copied_into(args[0], args[1]) if name == "copy_" and len(args) > 1 else None


def forward_of(
    kind: type[torch.autograd.Function],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    computes_gradients: bool = False,
) -> Any:
    """Runs the forward of an `autograd.Function` as operators, if no gradient is needed."""
    if torch_c.is_grad_enabled():
        remedy = (
            "Use the graph as it is, without lowering, because the program computes gradients."
            if computes_gradients
            else "Lower within torch.no_grad() if the graph is not differentiated."
        )
        raise SymbolicTraceError(
            f"{kind.__name__} defines its own gradient, which its operators do not have.\n{remedy}"
        )
    if kind.setup_context is not torch.autograd.Function.setup_context:
        result = kind.forward(*args, **kwargs)
    else:
        context: Any = torch.autograd.function.FunctionCtx()
        context.needs_input_grad = (False,) * len(args)
        result = kind.forward(context, *args, **kwargs)
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)


def _detached(value: object) -> Any:
    return pytree.tree_map_only(torch.Tensor, _detach, value)


def _detach(tensor: torch.Tensor) -> torch.Tensor:
    differs = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach() if differs else tensor
