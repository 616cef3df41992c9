"""Calls and attributes of modules, as a trace sees them.

During a trace, `nn.Module.__call__`, `__getattr__` and `__setattr__` are replaced by functions that
check which trace runs in *this* thread; without one, they call the original.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from calque.state import call_watched, unwatched
from calque.tracing.core.active import current_trace, suspended
from calque.tracing.core.patching import Patches
from calque.tracing.proxies.wrapping import LeafFunctions


class ModuleHooks:
    """Follows calls of modules and reads of their attributes in one trace.

    Args:
        tracer: its `call_module` and `getattr` decide what is recorded.
        leaves: patches the leaf functions in the globals of each module's forward.

    Attributes:
        proxies: the proxies of the parameters and buffers that were read, by qualified name.
    """

    def __init__(self, tracer: Any, leaves: LeafFunctions) -> None:
        self.tracer = tracer
        self._leaves = leaves
        self.proxies: dict[str, Any] = {}

    @unwatched
    def call(
        self,
        original: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Handle a call of a module."""
        forward = getattr(module, "forward", module)
        self._leaves.hold_in(getattr(forward, "__globals__", {}))
        call = functools.partial(call_watched, original, module)
        return self.tracer.call_module(module, call, args, kwargs)

    def getattr(self, name: str, value: Any) -> Any:
        """Handle the read of a parameter, buffer or submodule."""
        return self.tracer.getattr(name, value, self.proxies)


def hold_modules(patches: Patches) -> None:
    """Patch `nn.Module` so that a thread's trace sees the modules that the thread calls."""
    hold_calls(patches)
    patches.hold(torch.nn.Module, "__getattr__", _traced_getattr)
    patches.hold(torch.nn.Module, "__delattr__", _traced_delattr)
    patches.hold(torch.nn.Module, "__init__", _traced_init)
    # Recurrent layers check by identity whether their weights were replaced.
    patches.hold(torch.nn.RNNBase, "_update_flat_weights", _untraced)


def hold_calls(patches: Patches) -> None:
    """Like `hold_modules`, but only for calls of modules and assignments to them.

    Each replaced name of `nn.Module` costs a third of a millisecond, because Python updates every
    subclass.
    """
    patches.hold(torch.nn.Module, "__call__", _traced_call)
    patches.hold(torch.nn.Module, "__setattr__", _traced_setattr)


def _hooks() -> ModuleHooks | None:
    """Returns the trace of this thread if it has replaced all names; a recording replaces only
    those for calls.
    """
    trace = current_trace()
    return trace if isinstance(trace, ModuleHooks) else None


def _traced_delattr(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def delattr_(module: torch.nn.Module, name: str) -> None:
        trace = _hooks()
        if trace is not None:
            trace.tracer.delete_attribute(module, name)
        original(module, name)

    return delattr_


def _traced_init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        trace = _hooks()
        if trace is not None:
            trace.tracer.make_module(module)
        original(module, *args, **kwargs)

    return init


def _untraced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with nullcontext() if _hooks() is None else suspended():
            return original(*args, **kwargs)

    return call


def _traced_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if trace is None:
            return original(module, *args, **kwargs)
        return trace.call(original, module, args, kwargs)

    return call


def _traced_getattr(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def getattr_(module: torch.nn.Module, name: str) -> Any:
        value = original(module, name)
        trace = _hooks()
        return value if trace is None else trace.getattr(name, value)

    return getattr_


def _traced_setattr(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def setattr_(module: torch.nn.Module, name: str, value: object) -> None:
        trace = current_trace()
        if trace is None or trace.tracer.set_attribute(module, name, value):
            original(module, name, value if trace is None else trace.tracer.member_of(value))

    return setattr_


class Scripted(torch.nn.Module):
    """Wraps a TorchScript module inside another program, so that it can be one node."""

    def __init__(self, program: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.program = program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the TorchScript module."""
        return self.program(*args, **kwargs)
