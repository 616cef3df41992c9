"""Functions that apply an `autograd.Function`, as graphs call them.

A pickled graph imports its functions by name, so this module has a name for each class that can be
imported: `apply_` and the hexadecimal digits of where the class is.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch

from calque.tracing.core.active import current_trace
from calque.tracing.proxies.proxy import proxies_in

_APPLY: Any = vars(torch.autograd.Function)["apply"]
_PREFIX = "apply_"


@functools.lru_cache(maxsize=1024)
def application_of(kind: type) -> Callable[..., Any]:
    """Returns `kind.apply` under a unique name, for generated code."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        contexts = trace.tracer.contexts if trace is not None else None
        proxy = next(proxies_in((args, kwargs)), None)
        if contexts is not None and (contexts.repeats or proxy is not None):
            return contexts.apply(apply, args, kwargs)  # a graph is being traced
        if proxy is not None:  # by torch.fx, also when a graph is unpickled
            return proxy.tracer.create_proxy("call_function", apply, args, kwargs)
        return _APPLY.__get__(None, kind)(*args, **kwargs)

    apply.__name__ = apply.__qualname__ = f"{kind.__name__}_apply"
    # Generated code calls functions of torch modules by name, and PyTorch has none of this name.
    apply.__module__ = __name__ if kind.__module__.startswith("torch") else kind.__module__
    apply.runs_abstractly = True
    apply.differentiates = kind
    if "<locals>" not in kind.__qualname__:
        apply.importable = _importable(apply, kind)
    return apply


def _importable(apply: Callable[..., Any], kind: type) -> Callable[..., Any]:
    """Returns a function that calls `apply`, and that this module has under a name."""

    def importable(*args: Any, **kwargs: Any) -> Any:
        return apply(*args, **kwargs)

    place = f"{kind.__module__}:{kind.__qualname__}"
    importable.__name__ = importable.__qualname__ = _PREFIX + place.encode().hex()
    return importable


def __getattr__(name: str) -> Callable[..., Any]:
    """Returns the function that a pickled graph imports."""
    try:
        module, _, path = bytes.fromhex(name.removeprefix(_PREFIX)).decode().partition(":")
        if not name.startswith(_PREFIX) or not path:
            raise ValueError(name)
    except ValueError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return application_of(attrgetter(path)(import_module(module))).importable
