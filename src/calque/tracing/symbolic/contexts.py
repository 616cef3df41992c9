"""Blocks that change how PyTorch runs, and functions with a custom gradient.

Modes see neither `torch.autocast` nor `autograd.Function.apply`, so both would be lost silently,
the latter with the gradient that it defines.
"""

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.node import Node

from calque.tracing.core.active import current_trace
from calque.tracing.core.origins import is_engine
from calque.tracing.core.patching import Patches
from calque.tracing.core.refusals import refuse_because
from calque.tracing.core.torch_settings import tracer_of_program
from calque.tracing.proxies.proxy import proxies_in
from calque.tracing.symbolic.applications import application_of
from calque.upstream import torch_c, torch_internals

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer


class Contexts:
    """The open blocks of a trace, and the nodes that begin and end them.

    Attributes:
        repeats: whether actions of graphs within the program become nodes of the trace.
    """

    repeats = False

    def __init__(self, tracer: "SymbolicTracer") -> None:
        self._tracer = tracer
        self._grad_modes: dict[int, Node] = {}
        self._autocasts: dict[int, Node] = {}

    def are_open(self) -> bool:
        """Returns True if the running code is in blocks that the program opened."""
        return bool(self._grad_modes or self._autocasts)

    def _node(self, target: Callable[..., Any], *args: Any) -> Node:
        return self._tracer.create_node("call_function", target, args, {})

    def set_grad(self, enabled: bool) -> None:
        """Record the mode; the end of a block restores the mode found when the graph runs."""
        context, ends = _grad_mode_context()
        value: Any = enabled
        if ends:
            value = self._grad_modes.pop(id(context), enabled)
        elif context is not None and id(context) not in self._grad_modes:
            self._grad_modes[id(context)] = self._node(torch_c.is_grad_enabled)
        self._node(torch_c.set_grad_enabled, value)
        with torch_c.DisableTorchFunction():
            torch_c.set_grad_enabled(enabled)

    def enter_autocast(self, context: Any) -> None:
        """Record that a `torch.autocast` block begins."""
        arguments = (context.device, context.fast_dtype, context._enabled, context._cache_enabled)
        self._autocasts[id(context)] = self._node(torch_internals.enter_autocast, *arguments)

    def exit_autocast(self, context: object) -> None:
        """Record that a `torch.autocast` block ends."""
        node = self._autocasts.pop(id(context), None)
        if node is not None:
            self._node(torch_internals.exit_autocast, node)

    def apply(
        self, application: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record that an `autograd.Function` is applied to proxies."""
        for proxy in proxies_in((*args, *kwargs.values())):
            return proxy.tracer.create_proxy("call_function", application, args, kwargs)
        return application(*args, **kwargs)

    def enter_inference_mode(self) -> None:
        """Refuse a `torch.inference_mode` block, which no graph can repeat."""
        refuse_because(
            self._tracer,
            "torch.inference_mode cannot be part of a graph",
            "Use torch.no_grad(), or call the traced module inside torch.inference_mode().",
        )

    def enter_dispatch_mode(self, mode: object) -> None:
        """Refuse a block in which code of the program runs below PyTorch's operators."""
        refuse_because(
            self._tracer,
            f"{type(mode).__name__} is a dispatch mode, which cannot be part of a graph",
            "Enter it around calls of the graph.",
        )

    def enter_lost_block(self, what: str, remedy: str) -> None:
        """Refuse a block that affects gradients and that a graph would not contain."""
        refuse_because(self._tracer, f"{what} cannot be part of a graph", remedy)

    def change_default_dtype(self) -> None:
        """Refuse a change of the default dtype, which no node of a graph would set."""
        refuse_because(
            self._tracer,
            "the program changes the default dtype",
            "Pass dtype= where tensors are created, or change it around the call.",
        )


def _watched_default(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_default(value: object) -> None:
        before = torch.get_default_dtype()
        original(value)
        trace = current_trace()
        contexts = trace.tracer.contexts if trace is not None else None
        if contexts is not None and torch.get_default_dtype() is not before:
            contexts.change_default_dtype()

    return set_default


def _traced_parameter(original: Any) -> Any:
    @functools.wraps(original)
    def new(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        trace = current_trace()
        if trace is None or cls is not torch.nn.Parameter or not isinstance(data, torch.Tensor):
            return original(cls, data, requires_grad)
        if not isinstance(data, torch.fx.Proxy):
            contexts, make = trace.tracer.contexts, functools.partial(original, cls)
            if contexts is None or not contexts.repeats:
                return make(data, requires_grad)
            return contexts.make_parameter(make, data, requires_grad)
        made = trace.tracer.create_proxy("call_function", cls, (data, requires_grad), {})
        made._is_param, made.type_of_value = True, cls
        return made

    return new


def hold_contexts(patches: Patches) -> None:
    """Patch what modes do not intercept: autocast and autograd functions."""
    patches.hold(torch.amp.autocast, "__enter__", _traced_enter)
    patches.hold(torch.amp.autocast, "__exit__", _traced_exit)
    patches.hold(torch.autograd.Function, "apply", _traced_apply)
    patches.hold(torch.nn.Parameter, "__new__", _traced_parameter)
    patches.hold(torch.inference_mode, "__enter__", _refused_enter)
    patches.hold(torch_internals.TorchDispatchMode, "__enter__", _watched_mode)
    patches.hold(saved_tensors_hooks, "__enter__", _refused_hooks)
    for place, name in ((forward_ad.dual_level, "__enter__"), (forward_ad, "enter_dual_level")):
        patches.hold(place, name, _refused_level)
    patches.hold(torch_c.extension, "_set_default_dtype", _watched_default)
    patches.hold(torch_c.extension, "_set_default_tensor_type", _watched_default)


def _traced_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: object) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.contexts is not None:
            trace.tracer.contexts.enter_autocast(self)
        return original(self)

    return enter


def _traced_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    def exit_(self: object, *exception: Any) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.contexts is not None:
            trace.tracer.contexts.exit_autocast(self)
        return original(self, *exception)

    return exit_


def _refused_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: object) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.contexts is not None:
            trace.tracer.contexts.enter_inference_mode()
        return original(self)

    return enter


def _refused_hooks(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: object) -> Any:
        tracer = tracer_of_program()
        changes_nothing = type(self) is not saved_tensors_hooks and _is_torchs(self)
        if tracer is not None and not changes_nothing:
            what = "torch.autograd.graph.saved_tensors_hooks"
            tracer.contexts.enter_lost_block(what, "Enter it around calls of the graph.")
        return original(self)

    return enter


def _refused_level(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(*self: Any) -> Any:
        trace = current_trace()  # also where PyTorch enters it, as `torch.func.linearize` does
        if trace is not None and trace.tracer.contexts is not None:
            what = "torch.autograd.forward_ad"
            trace.tracer.contexts.enter_lost_block(
                what,
                "Make the code inside a leaf function, or enter it around calls of the graph.",
            )
        return original(*self)

    return enter


def _is_torchs(value: object) -> bool:
    return type(value).__module__.startswith(("torch.", "calque."))


def _watched_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enter(self: object) -> Any:
        trace = current_trace()
        contexts = trace.tracer.contexts if trace is not None else None
        if contexts is not None and not _is_torchs(self):  # these change no results
            contexts.enter_dispatch_mode(self)
        return original(self)

    return enter


def _traced_apply(original: Any) -> Any:
    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.contexts is not None:
            return trace.tracer.contexts.apply(application_of(cls), args, kwargs)
        return original.__get__(None, cls)(*args, **kwargs)

    return classmethod(apply)


def _grad_mode_context() -> tuple[Any, bool]:
    """Returns the `torch.no_grad` or similar context that is setting the mode, and whether its
    block ends.

    The context is None if the program sets the mode directly.
    """
    context, ends = None, False
    frame = sys._getframe(1)
    while frame is not None and is_engine(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith("grad_mode.py"):
            context = frame.f_locals.get("self")
            ends = frame.f_code.co_name == "__exit__"
        frame = frame.f_back
    return context, ends
