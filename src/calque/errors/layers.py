"""Finds the layer of a model that raised an error, from the frames of its traceback."""

from itertools import pairwise
from types import TracebackType
from typing import Any

from torch.nn import Module

from calque.upstream import torch_internals

SURROUNDS = "surrounds_the_users_module"
"""An attribute of calque's module classes that wrap the user's modules."""

_CALL = torch_internals.Module._call_impl.__code__


def layer_of(traceback: TracebackType | None) -> str | None:
    """Returns the innermost layer that was running, with its path in the model; None outside of
    models.

    The path is that of `named_modules()`, as in the keys of `state_dict()`.
    """
    running = _running(traceback)
    if len(running) < 2:
        return None
    root, path = running[0], []
    for outer, inner in pairwise(running):
        name = _name(outer, inner)
        if name is None:
            root, path = inner, []
        elif name:
            path.append(name)
    if not path:
        return None
    inner = running[-1]
    settings = inner.extra_repr()
    shown = f"({settings})" if settings and "\n" not in settings else ""
    return f"{'.'.join(path)} of {type(root).__name__}: {type(inner).__name__}{shown}"


def _running(traceback: TracebackType | None) -> list[Module]:
    found: list[Module] = []
    step = traceback
    while step is not None:
        # A trace calls the model's `forward` directly; a layer's `forward` is called by `__call__`.
        if step.tb_frame.f_code is _CALL or step.tb_frame.f_code.co_name == "forward":
            module: Any = step.tb_frame.f_locals.get("self")
            is_users = isinstance(module, Module) and not hasattr(type(module), SURROUNDS)
            if is_users and not (found and found[-1] is module):
                found.append(module)
        step = step.tb_next
    return found


def _name(outer: Module, inner: Module) -> str | None:
    return next((name for name, module in outer.named_modules() if module is inner), None)
