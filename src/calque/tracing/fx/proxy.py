"""The names of `torch.fx.proxy`."""

import torch.fx.proxy as _theirs

from calque.tracing.core.errors import SymbolicTraceError as TraceError
from calque.tracing.core.scope import Scope, ScopeContextManager
from calque.tracing.proxies.meta_proxy import MetaProxy
from calque.tracing.proxies.node_creation import GraphAppendingTracer, TracerBase
from calque.tracing.proxies.proxy import Attribute, ParameterProxy, Proxy, assert_fn

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
    """Returns any other name of torch's module."""
    return getattr(_theirs, name)
