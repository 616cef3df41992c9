"""Changes Dynamo when it is imported: it must not compile JAX's code, nor calque's by itself, and
several threads may load the backend for the first time at once.

`torch.compile(model, backend="calque")` looks up the name, loads the entry point if necessary, and
registers the result. Threads that do so at the same time each register it, and PyTorch raises an
error for all but the first: "duplicate name: calque".
"""

from collections.abc import Callable
from os.path import dirname
from types import FunctionType, ModuleType
from typing import Any

from calque.device.runtime.imports import when_imported
from calque.upstream.torch_internals import (
    judge_methods_by_their_functions,
    keep_dynamo_out,
    keep_dynamo_out_of_frames,
)

_REGISTER, _THEIRS = "register_backend", "_register_backend_once"


def install() -> None:
    """Once Dynamo is imported, keep it out of JAX's code and calque's, and allow repeated
    registration of a backend.
    """
    when_imported("torch._dynamo.backends.registry", _be_lenient)
    when_imported("torch._dynamo.trace_rules", _leave_jax_alone)
    when_imported("torch._dynamo.trace_rules", _leave_our_frames_alone)
    when_imported("torch._dynamo.trace_rules", judge_methods_by_their_functions)


def _leave_jax_alone(trace_rules: ModuleType) -> None:
    """Make Dynamo call JAX's functions: compiled copies of them fail in the middle of JAX's
    traces.
    """
    for package in ("jax", "jaxlib"):
        keep_dynamo_out(trace_rules, package)


def _leave_our_frames_alone(trace_rules: ModuleType) -> None:
    """Make Dynamo treat calque's code like PyTorch's, whose functions it replaces: after a graph
    break, `print(x)` or `module.double()` is a call, and Dynamo does not compile what it runs.
    """
    keep_dynamo_out_of_frames(trace_rules, "calque", dirname(dirname(__file__)))


def _be_lenient(registry: ModuleType) -> None:
    """Replace the function's code in place, because calls of it may be in progress."""
    register = getattr(registry, _REGISTER, None)
    known = isinstance(getattr(registry, "_COMPILER_FNS", None), dict)
    if not (known and isinstance(register, FunctionType)) or hasattr(registry, _THEIRS):
        return
    if register.__closure__ is not None:
        return
    theirs = FunctionType(register.__code__, vars(registry), _REGISTER, register.__defaults__)
    setattr(registry, _THEIRS, theirs)
    register.__code__ = _register.__code__


_COMPILER_FNS: dict[str | None, Any] = {}
_register_backend_once: Callable[..., Any] = print


def _register(compiler_fn: object = None, name: str | None = None, tags: object = ()) -> Any:
    """Replacement code that runs in PyTorch's module, where these two names are defined."""
    try:
        return _register_backend_once(compiler_fn, name, tags)
    except AssertionError:
        if compiler_fn is None or _COMPILER_FNS.get(name) is not compiler_fn:
            raise
        return compiler_fn
