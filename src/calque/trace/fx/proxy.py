"""The names of `torch.fx.proxy`."""

import torch.fx.proxy as _theirs

from calque.trace.base import GraphAppendingTracer, TracerBase
from calque.trace.errors import SymbolicTraceError as TraceError
from calque.trace.meta_proxy import MetaProxy
from calque.trace.proxy import Attribute, ParameterProxy, Proxy, assert_fn
from calque.trace.scope import Scope, ScopeContextManager

__all__ = [
    "Attribute",
    "GraphAppendingTracer",
    "MetaProxy",
    "ParameterProxy",
    "Proxy",
    "Scope",
    "ScopeContextManager",
    "TraceError",
    "TracerBase",
    "assert_fn",
]


def __getattr__(name: str) -> object:
    """What else the module of torch has."""
    return getattr(_theirs, name)
