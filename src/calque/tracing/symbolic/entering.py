"""How a module that is traced is called: with its hooks, and as its class says."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch.nn import Module


def as_called(root: Any, method: str, function: FunctionType) -> Callable[..., Any]:
    """The method, or what a call of the module does where that is more than its `forward`.

    Args:
        root: what is traced.
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
