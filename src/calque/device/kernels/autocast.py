"""Autocast on the device: which operators run in low precision and which in float32.

PyTorch has tables only for its own devices. Here, this is a fact of each operator
(`ops.table.facts`), following CUDA's table. The casts are ordinary operators, so autograd and
`calque.jit` see them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from calque.device.kernels.binding import operator_names, overload_of, when_called
from calque.ops.table.facts import operators_with
from calque.upstream import torch_c
from calque.upstream.torch_internals import tree_leaves, tree_map

KEY = "AutocastPrivateUse1"
_AUTOCAST = torch_c.DispatchKeySet(torch_c.DispatchKey.AutocastPrivateUse1)


Kernel = Callable[..., Any]


def _castable(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "jax"
        and value.dtype in (torch.float16, torch.bfloat16, torch.float32)
    )


def _cast(tree: object, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: x.to(dtype) if _castable(x) else x, tree)


def _without_autocast(op: Kernel, args: object, kwargs: object, dtype: torch.dtype) -> Any:
    with torch_c.ExcludeDispatchKeyGuard(_AUTOCAST):
        return op(*_cast(args, dtype), **_cast(kwargs, dtype))


def _lower(op: Kernel) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _without_autocast(op, args, kwargs, torch.get_autocast_dtype("jax"))

    return kernel


def _float32(op: Kernel) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _without_autocast(op, args, kwargs, torch.float32)

    return kernel


def _widest(op: Kernel) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if _castable(x)]
        lower = torch.get_autocast_dtype("jax")
        wide = any(x.dtype == torch.float32 for x in tensors)
        return _without_autocast(op, args, kwargs, torch.float32 if wide else lower)

    return kernel


_MAKERS = {"lower": _lower, "float32": _float32, "widest": _widest}


def _made(name: str, dtype: str) -> Kernel:
    return _MAKERS[dtype](overload_of(name))


def _refuse(message: str) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(message)

    return kernel


def install(aten: torch.library.Library, everything: torch.library.Library) -> None:
    """Register the tables; autocast does not affect other operators."""
    everything.fallback(torch.library.fallthrough_kernel, KEY)
    known = set(operator_names())
    for name, dtype in operators_with("autocast").items():
        if name in known:
            make = partial(_made, name, dtype)
            aten.impl(name.removeprefix("aten::"), when_called(make), KEY)
    for name, message in operators_with("unsafe_autocast").items():
        aten.impl(name.removeprefix("aten::"), _refuse(message), KEY)
