"""Symbolic tracing: runs a program on proxies, and turns what it does into a graph.

The entry points are `calque.trace` and `calque.symbolic_trace`; this package has the classes to
extend.

`calque.tracing.fx` has the names of torch.fx, and behaves exactly like it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from calque.upstream.later_names import later

if TYPE_CHECKING:
    from calque.tracing import fx
    from calque.tracing.api import symbolic_trace, trace
    from calque.tracing.lowering.lowering import lower
    from calque.tracing.paths.decisions import max_paths
    from calque.tracing.proxies.proxy import Attribute, ParameterProxy, Proxy
    from calque.tracing.proxies.wrapping import wrap
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer
    from calque.tracing.tracer.tracer import Tracer

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
    "trace",
    "wrap",
]

__getattr__: Callable[[str], Any] = later(
    __name__,
    {
        "Attribute": ".proxies.proxy",
        "ParameterProxy": ".proxies.proxy",
        "Proxy": ".proxies.proxy",
        "SymbolicTracer": ".symbolic.symbolic_tracer",
        "Tracer": ".tracer.tracer",
        "fx": ".fx",
        "lower": ".lowering.lowering",
        "max_paths": ".paths.decisions",
        "symbolic_trace": ".api",
        "trace": ".api",
        "wrap": ".proxies.wrapping",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
