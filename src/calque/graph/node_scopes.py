"""The layers of a graph's nodes as JAX name scopes, for profiles."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from torch import fx

from calque.upstream.jax_internals import source_info_util

_INDEX = re.compile(r"""\[['"]?(\w+)['"]?\]""")
_NOTHING = nullcontext()


def scopes_of(node: fx.Node) -> AbstractContextManager[Any]:
    """Returns a context manager in which operations are named after the node's layer.

    PyTorch's tracers keep the layers in `nn_module_stack`; nodes of a backward have those of the
    forward in `fwd_nn_module_stack`.
    """
    layers = node.meta.get("nn_module_stack")
    backward = () if layers else node.meta.get("fwd_nn_module_stack", ())
    layers = layers or backward
    if not layers:
        return _NOTHING
    names = _names(tuple([path for path, _ in layers.values()]))
    if not names:
        return _NOTHING
    stack = source_info_util.current_name_stack()
    for name in names:
        stack = stack.extend(name)
    return source_info_util.set_name_stack(stack.extend("backward") if backward else stack)


@lru_cache(maxsize=4096)
def _names(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the name of each enclosing layer, outermost first."""
    return tuple(_relative(paths))


def _relative(paths: tuple[str, ...]) -> Iterator[str]:
    around = ""
    for path in paths:
        path = _INDEX.sub(r".\1", path)
        if path.startswith(("L.", "G.")):  # a local or global variable of the compiled function
            path = path[2:]
            if not around:
                around, inner, _ = path.partition(".")
                if not inner:
                    yield path
                    continue
        name = path.removeprefix(f"{around}.") if around else path
        if name and path != around:
            yield name
            around = path
