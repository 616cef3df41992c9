"""Leaf functions: those that stay one call in the graph.

The registry is that of torch.fx, so functions that libraries wrapped for torch.fx are leaves here,
and vice versa.
"""

import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, TypeVar

from calque.tracing.core.patching import Patches
from calque.tracing.proxies.proxy import proxies_in
from calque.upstream.torch_internals import fx_symbolic_trace, get_qualified_name

F = TypeVar("F", bound=Callable[..., Any] | str)


def wrap(fn_or_name: F) -> F:
    """Make a function of the calling module a leaf: a call with a proxy becomes one node.

    Call it at the top level of the module that has the global name, or decorate the function.

    Args:
        fn_or_name: the function, or the name of a global (or a builtin) as the module calls it.

    Raises:
        RuntimeError: `fn_or_name` is neither a function nor a name.
        NotImplementedError: it is not called at the top level of a module.

    >>> wrap(3)
    Traceback (most recent call last):
    ...
    RuntimeError: wrap expects a function or the name of one, not int
    """
    if isinstance(fn_or_name, str):
        name = fn_or_name
    elif callable(fn_or_name):
        name = fn_or_name.__name__
    else:
        raise RuntimeError(
            f"wrap expects a function or the name of one, not {type(fn_or_name).__name__}"
        )
    frame = inspect.currentframe()
    caller = frame.f_back if frame else None
    if caller is None or caller.f_code.co_name != "<module>":
        raise NotImplementedError("wrap must be called at the top level of a module")
    fx_symbolic_trace._wrapped_fns_to_patch[(id(caller.f_globals), name)] = caller.f_globals
    return fn_or_name  # pyright: ignore[reportReturnType]


def registered_identities() -> set[int]:
    """Returns the ids of the registered functions, to find them under other modules' names."""
    registered = list(fx_symbolic_trace._wrapped_fns_to_patch.items())
    functions = (unpatched(names.get(name)) for (_, name), names in registered)
    return {id(function) for function in functions if isinstance(function, FunctionType)}


@functools.lru_cache(maxsize=1024)
def nameable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, or a wrapper if its name means a different function in generated code.

    A function wrapped by `functools.wraps(torch.relu)` claims to be PyTorch's; a callable object
    may have no name at all.
    """
    home = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", None)
    if name is not None and not home.startswith("torch"):
        return function
    if name is not None and _found(get_qualified_name(function)) is function:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = name or type(function).__name__
    return call


def _found(path: str) -> Any:
    value: Any = sys.modules.get(path.partition(".")[0])
    for part in path.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def leaf_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function` so that a call with a proxy among its arguments is recorded as one node."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for proxy in proxies_in((*args, *kwargs.values())):
            target = nameable(function)
            result = proxy.tracer.create_proxy("call_function", target, args, kwargs)
            result.node.meta["is_wrapped"] = True
            proxy.tracer.leaf_returned(result.node)
            return result
        return function(*args, **kwargs)

    wrapped.__fx_already_patched = True
    return wrapped


def _leaf_method(function: Callable[..., Any]) -> Callable[..., Any]:
    name = function.__name__

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for proxy in proxies_in((*args, *kwargs.values())):
            return proxy.tracer.create_proxy("call_method", name, args, kwargs)
        return function(*args, **kwargs)

    return wrapped


class LeafFunctions:
    """Patches the names of leaf functions, for one trace.

    Args:
        patches: the patches to add the replacements to.
        identities: the ids of functions that are leaves under any name.
    """

    def __init__(self, patches: Patches, identities: Iterable[int]) -> None:
        self._patches = patches
        self._identities = set(identities)
        self._visited: set[int] = set()

    def hold_registered(self) -> None:
        """Replaces the functions that `wrap` has registered, under their registered names."""
        for (_, name), names in list(fx_symbolic_trace._wrapped_fns_to_patch.items()):
            builtin = getattr(builtins, name, None)
            function = names.get(name, builtin)
            if function is None:
                raise KeyError(name)
            self._patches.hold(names, name, leaf_function, builtin)
        for cls, name in fx_symbolic_trace._wrapped_methods_to_patch:
            self._patches.hold(cls, name, _leaf_method, getattr(cls, name))

    def hold_in(self, names: dict[str, Any]) -> None:
        """Replaces the globals of a module that are leaf functions."""
        if id(names) in self._visited:
            return
        self._visited.add(id(names))
        for name, value in list(names.items()):
            if id(unpatched(value)) in self._identities and not name.startswith("_"):
                self._patches.hold(names, name, leaf_function)


def unpatched(value: object) -> Any:
    """Returns the original function if another trace has replaced it."""
    if type(value) is FunctionType and getattr(value, "__fx_already_patched", False):
        return value.__wrapped__
    return value
