"""Symbolic tracing: a program is run on proxies, and what it does becomes a graph.

The module can be called: `calque.trace(model, x)` is `calque.trace.api.trace`.

>>> import calque, torch
>>> graph = calque.trace(lambda x: x * 2 + 1)
>>> graph(torch.ones(2))
tensor([3., 3.])

`calque.trace.fx` has the names of torch.fx, and follows it to the letter.
"""

import sys
from types import ModuleType
from typing import Any

from calque.diagnostics import tidy
from calque.trace import fx
from calque.trace.api import symbolic_trace
from calque.trace.api import trace as _trace
from calque.trace.decisions import max_paths
from calque.trace.lowering import lower
from calque.trace.proxy import Attribute, ParameterProxy, Proxy
from calque.trace.symbolic import SymbolicTracer
from calque.trace.tracer import Tracer
from calque.trace.wrapping import wrap

__all__ = [
    "Attribute",
    "ParameterProxy",
    "Proxy",
    "SymbolicTracer",
    "Tracer",
    "fx",
    "lower",
    "max_paths",
    "symbolic_trace",
    "wrap",
]


class _Callable(ModuleType):
    def __call__(self, root: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return _trace(root, *args, **kwargs)
        except Exception as error:
            tidy(error).__cause__ = None
            raise  # which adds no frame, unlike `raise error`


_Callable.__call__.__doc__ = _trace.__doc__
sys.modules[__name__].__class__ = _Callable
