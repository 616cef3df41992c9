"""The names of `torch.fx._symbolic_trace`, and `symbolic_trace` as torch.fx means it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.fx._symbolic_trace as _theirs
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx._symbolic_trace import (
    PH,
    PHBase,
    PHWithMeta,
    _assert_is_none,
    _wrapped_fns_to_patch,
    _wrapped_methods_to_patch,
)
from torch.fx.graph_module import GraphModule

from calque.tracing.core.active import is_tracing as is_fx_tracing
from calque.tracing.core.active import suspended as _maybe_revert_all_patches
from calque.tracing.proxies.proxyable import ProxyableClassMeta
from calque.tracing.proxies.wrapping import leaf_function as _create_wrapped_func
from calque.tracing.proxies.wrapping import wrap
from calque.tracing.tracer.tracer import Tracer

__all__ = [
    "PH",
    "PHBase",
    "PHWithMeta",
    "ProxyableClassMeta",
    "Tracer",
    "_assert_is_none",
    "_create_wrapped_func",
    "_maybe_revert_all_patches",
    "_wrapped_fns_to_patch",
    "_wrapped_methods_to_patch",
    "is_fx_symbolic_tracing",
    "is_fx_tracing",
    "symbolic_trace",
    "wrap",
]


def is_fx_symbolic_tracing() -> bool:
    """Returns True if a symbolic trace runs in this thread, and not torch.compile."""
    return is_fx_tracing() and not torch.compiler.is_compiling()


def symbolic_trace(
    root: torch.nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
) -> GraphModule:
    """Like `torch.fx.symbolic_trace`, with calque's tracer. Where this function is silently wrong,
    `calque.symbolic_trace` is right or raises an error.

    Args:
        root: a module or a function.
        concrete_args: values for some parameters; `PH` stands for a proxy inside a container.

    >>> symbolic_trace(lambda x: x + 1)(2)
    3
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, torch.nn.Module) else root.__name__
    return _make_graph_module(tracer.root, graph, name)


def __getattr__(name: str) -> object:
    """Returns any other name of torch's module."""
    return getattr(_theirs, name)
