"""Modes that see the calls of PyTorch's functions in a trace, but not what these call."""

import os
import sys
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_Tensor = torch.Tensor
_CALQUE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_HANDLERS = frozenset(
    f"calque.program.{name}" for name in ("function_modes", "tensor_methods", "view_arguments")
)
"""Modules with modes, which see the calls of other modes."""


class FunctionMode(TorchFunctionMode):
    """A mode that also sees the calls of hooks and custom backwards.

    PyTorch runs a function without the mode that has seen it, and so whatever it calls.
    """

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls a function; other functions that are called in it are not seen."""
        return func(*args, **kwargs)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        func = _called(func)
        if func in _RUNNING:
            run = _RUNNING[func]
            with self:
                return (run if run is _backward else without_dispatch(run))(*args, **kwargs)
        return self.call(func, args, kwargs)


def _called(func: Any) -> Any:
    """Returns the method of PyTorch that was called, if a program has replaced it.

    PyTorch gives a mode the attribute of `torch.Tensor` with the method's name. If that is the
    program's own function, it has called the method.
    """
    if type(func) is types.FunctionType and not str(func.__module__).startswith("torch."):
        for name, method in vars(_Tensor).items():
            if method is func:
                return getattr(_Tensor.__base__, name, func)
    return func


def called_by_calque() -> bool:
    """Returns True if the function that a mode has seen was called by calque."""
    frame: Any = sys._getframe(1)
    while frame.f_globals.get("__name__") in _HANDLERS:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_CALQUE)


def _backward(
    tensor: torch.Tensor,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Implements `Tensor.backward` as a plain function."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


_DISPATCHES = ("", "_unary", "_variadic")
_DISPATCHES = frozenset(f"has_torch_function{ending}" for ending in _DISPATCHES)


def dispatches(function: Any) -> bool:
    """Returns True for a Python function of PyTorch whose first step dispatches to modes."""
    if type(function) is not types.FunctionType:
        return False
    names = function.__globals__
    return any(name in names for name in function.__code__.co_names if name in _DISPATCHES)


def without_dispatch(function: Any) -> Any:
    """Wraps a PyTorch function without its first step, which would dispatch to modes.

    It looks up globals at each call, because the device replaces the engine.
    """
    assert dispatches(function)

    def run(*args: Any, **kwargs: Any) -> Any:
        # The module's current globals, because the function that runs the engine is replaced later.
        names = {**function.__globals__, **dict.fromkeys(_DISPATCHES, lambda *tensors: False)}
        copy = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy(*args, **kwargs)

    return run


_RUNNING = {
    _Tensor.backward: _backward,
    torch.autograd.backward: torch.autograd.backward,
    torch.autograd.grad: torch.autograd.grad,
}
"""Functions that run the user's code (hooks, custom backwards) outside of any mode."""
