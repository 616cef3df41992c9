"""Observes module calls in a trace without hooks, because hooks are part of the state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import Module

from calque.upstream import torch_internals

Enter = Callable[[Module], Callable[[], object] | None]


@contextmanager
def watching_calls(enter: Enter) -> Iterator[None]:
    """A context manager that observes calls of modules, except those compiled by
    `module.compile()`.

    Args:
        enter: called before a module runs; returns a function to call when the module returns or
            raises.
    """
    kind: Any = torch_internals.nn_module.Module
    before = kind._compiled_call_impl  # PyTorch calls this, if set, instead of its own

    def call(module: Module, /, *args: Any, **kwargs: Any) -> Any:
        leave = enter(module)
        try:
            return (kind._call_impl if before is None else before)(module, *args, **kwargs)
        finally:
            if leave is not None:
                leave()

    kind._compiled_call_impl = call
    try:
        yield
    finally:
        kind._compiled_call_impl = before
