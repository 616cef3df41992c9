"""Tensors of a trace that a module stores as attributes (a cache that is filled at the first
use).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
from torch.nn import Module

from calque.device.memory.cell import cell_of
from calque.upstream.torch_internals import tree_leaves

_ABSENT = object()


@contextmanager
def taken_back(module: Module | None) -> Iterator[None]:
    """A context manager that restores attributes to which tensors of the trace were assigned."""
    modules = [] if module is None else list(module.modules())
    before = [dict(vars(one)) for one in modules]
    try:
        yield
    finally:
        for one, known in zip(modules, before, strict=True):
            own = vars(one)
            for name, value in list(own.items()):
                if value is known.get(name, _ABSENT) or not any(
                    map(_is_traced, tree_leaves(value))
                ):
                    continue
                if name in known:
                    own[name] = known[name]
                else:
                    del own[name]


def _is_traced(value: Any) -> bool:
    on_device = isinstance(value, torch.Tensor) and value.device.type == "jax"
    return on_device and isinstance(cell_of(value).array, jax.core.Tracer)
