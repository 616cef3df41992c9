"""Control flow in a jitted function: choices and loops whose conditions are tensors.

And other operators that take functions, which are traced with the function around them.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from calque.device.memory.cell import active
from calque.device.runtime.imports import when_imported
from calque.upstream.torch_c import DispatchKey
from calque.upstream.torch_internals import (
    cond_op,
    higher_order_utils,
    map_impl,
    scan_op,
    while_loop_op,
)

_OPERATORS = {cond_op: "cond", while_loop_op: "while_loop", scan_op: "scan", map_impl: "map_impl"}
"""The operators, with the names of our functions in `calls`."""


@functools.cache
def install() -> None:
    """Support `torch.cond` and similar operators, and the choices and loops of traced graphs, on
    the device.

    The modules that implement them are imported when they are first called.
    """
    when_imported("calque.tracing.graph.branching", _implement)
    when_imported("calque.jitting.host_tensors", _allow_under_its_mode)
    for operator, name in _OPERATORS.items():
        theirs = operator.py_kernels[DispatchKey.Autograd]
        operator.py_impl(DispatchKey.AutogradPrivateUse1)(_in_programs(_call(name), theirs))
    when_imported("torch._higher_order_ops.flex_attention", _attend)
    when_imported("torch._dynamo.eval_frame", _inline)
    compiled = higher_order_utils._hop_compile_and_call

    @functools.wraps(compiled)
    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if not _is_in_program():
            return compiled(fn, args, kwargs)
        if fn.__name__ == "_cond_op_wrapper":  # its operator takes only flat operands
            return _call("cond")(*args)
        return fn(*args, **(kwargs or {}))

    higher_order_utils._hop_compile_and_call = call


def _inline(eval_frame: Any) -> None:
    importlib.import_module(f"{__name__}.compiled").inline(eval_frame, _is_in_program)


def _attend(flex: Any) -> None:
    """Support `flex_attention`, by PyTorch's formula of it, which calls `score_mod` and masks."""
    operator, ours = flex.flex_attention, flex.math_attention
    theirs = operator.py_kernels[DispatchKey.Autograd]
    operator.py_impl(DispatchKey.AutogradPrivateUse1)(_in_programs(ours, theirs))

    def allow(host_tensors: Any) -> None:
        operator.py_impl(host_tensors.HostTensorMode)(_without_the_mode(ours))

    when_imported("calque.jitting.host_tensors", allow)


def _implement(branching: Any) -> None:
    branching.implementations["jax"] = _lazily("choices", "choose")
    branching.loop_implementations["jax"] = _lazily("loops", "loop")


def _lazily(module: str, name: str) -> Callable[..., Any]:
    """Returns a function that imports another one, and calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*args, **kwargs)

    return call


def _call(name: str) -> Callable[..., Any]:
    return _lazily("calls", name)


def _is_in_program() -> bool:
    """Returns True if the program of a function is being traced."""
    if active.trace is None:
        return False
    lifting = importlib.import_module("calque.program.lifting")
    return isinstance(active.trace, lifting.Lifting)


def _in_programs(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (ours if _is_in_program() else theirs)(*args, **kwargs)

    return call


def _allow_under_its_mode(host_tensors: Any) -> None:
    """Register our functions for tensors without autograd (`torch.inference_mode`)."""
    for operator, name in _OPERATORS.items():
        operator.py_impl(host_tensors.HostTensorMode)(_without_the_mode(_call(name)))


def _without_the_mode(ours: Callable[..., Any]) -> Callable[..., Any]:
    def call(mode: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:  # PyTorch disables it for this call
            return ours(*args, **kwargs)

    return call
