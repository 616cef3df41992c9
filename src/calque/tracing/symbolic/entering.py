"""Determines how a traced module is called: with its hooks, and its class's `__call__`."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch.nn import Module


def as_called(root: object, method: str, function: FunctionType) -> Callable[..., Any]:
    """Returns the method, or the whole call of the module if it does more than `forward`.

    Args:
        root: the traced module or function.
        method: the name of the method.
        function: the method.
    """
    if not isinstance(root, Module) or method != "forward" or not _does_more(root):
        return function

    @functools.wraps(function)
    def called(module: Module, *args: Any, **kwargs: Any) -> Any:
        return type(module).__call__(module, *args, **kwargs)

    return called


def _does_more(root: Module) -> bool:
    own = type(root).__mro__[: type(root).__mro__.index(Module)]
    overrides = any("__call__" in vars(base) for base in own)
    return bool(root._forward_hooks or root._forward_pre_hooks or overrides)
