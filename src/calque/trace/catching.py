"""What is caught of the traced program beside its proxies.

A `TorchFunctionMode` sees every call of PyTorch in this thread, by whatever name the program got
hold of the function, proxies or not: creation functions become nodes, instead of constants that
were drawn once.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from calque.trace.active import current_trace
from calque.trace.origins import is_engine
from calque.trace.patching import Patches
from calque.trace.proxy import proxies_in
from calque.trace.refusals import refuse_because


class CallCatcher(TorchFunctionMode):
    """Hands each call of PyTorch to the tracer, while its trace is the one that runs."""

    def __init__(self, tracer: Any) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        trace = current_trace()
        if trace is None or trace.tracer is not self._tracer:
            return func(*args, **(kwargs or {}))
        return self._tracer.torch_call(func, args, kwargs or {})


def hold_contexts(patches: Patches) -> None:
    """Let the trace see what PyTorch hides from a mode: autocast, and autograd functions."""
    patches.hold(torch.amp.autocast, "__enter__", _traced_enter)
    patches.hold(torch.amp.autocast, "__exit__", _traced_exit)
    patches.hold(torch.autograd.Function, "apply", _traced_apply)
    patches.hold(torch.inference_mode, "__enter__", _refused_enter)


def _traced_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: Any) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.records_contexts:
            trace.tracer.enter_autocast(self)
        return original(self)

    return enter


def _traced_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    def exit_(self: Any, *exception: Any) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.records_contexts:
            trace.tracer.exit_autocast(self)
        return original(self, *exception)

    return exit_


def _refused_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: Any) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.records_contexts:
            refuse_because(
                trace.tracer,
                "torch.inference_mode cannot be part of a graph",
                "Use torch.no_grad(), or call the traced module inside torch.inference_mode().",
            )
        return original(self)

    return enter


@functools.lru_cache(maxsize=1024)
def _application(kind: type, original: Any) -> Callable[..., Any]:
    """`kind.apply` under a name of its own, which generated code can tell from other functions'."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        return original.__get__(None, kind)(*args, **kwargs)

    apply.__name__ = apply.__qualname__ = f"{kind.__name__}_apply"
    apply.__module__ = kind.__module__
    apply.runs_abstractly = True  # pyright: ignore
    return apply


def _traced_apply(original: Any) -> Any:
    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if trace is not None and trace.tracer.records_contexts:
            for proxy in proxies_in((*args, *kwargs.values())):
                return proxy.tracer.create_proxy(
                    "call_function", _application(cls, original), args, kwargs
                )
        return original.__get__(None, cls)(*args, **kwargs)

    return classmethod(apply)


def grad_mode_context() -> tuple[Any, bool]:
    """The `torch.no_grad` or relative that sets the mode now, and whether its block ends.

    None for the first where the program sets the mode by itself.
    """
    context, ends = None, False
    frame = sys._getframe(1)
    while frame is not None and is_engine(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith("grad_mode.py"):
            context = frame.f_locals.get("self")
            ends = frame.f_code.co_name == "__exit__"
        frame = frame.f_back
    return context, ends
