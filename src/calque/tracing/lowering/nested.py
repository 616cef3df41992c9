"""Refuses nested tensors, which PyTorch's encoder makes of padded batches when gradients are off.

Its result is then zero at the padding. While it is lowered, it takes the other branch, whose result
is not zero there.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from calque.tracing.core.errors import SymbolicTraceError
from calque.upstream import torch_c

_MASK = "src_key_padding_mask"


def refuse_nested(
    module: nn.Module,
    modules: Iterable[nn.Module],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise if a call would compute with nested tensors.

    Args:
        module: the called module: an encoder, or a module that contains one and takes its mask.
        modules: the modules in it.
        args: the arguments of the call.
        kwargs: the keyword arguments of the call.
    """
    encoders = [each for each in modules if isinstance(each, nn.TransformerEncoder)]
    if not any(map(_makes_nested, encoders)):
        return
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    if given.get(_MASK) is not None:
        raise nested()


def _makes_nested(encoder: nn.TransformerEncoder) -> bool:
    has_gradient = torch_c.is_grad_enabled() and any(p.requires_grad for p in encoder.parameters())
    can = getattr(encoder, "use_nested_tensor", True) and torch.backends.mha.get_fastpath_enabled()
    return bool(can) and not encoder.training and not has_gradient


def nested() -> SymbolicTraceError:
    """The error for a nested tensor."""
    return SymbolicTraceError(
        "the shapes of a nested tensor depend on values, which are not known while lowering. "
        "With gradients off, nn.TransformerEncoder makes a nested tensor from a padding mask.\n"
        "Create it with enable_nested_tensor=False, or call "
        "torch.backends.mha.set_fastpath_enabled(False); results at the padding then differ."
    )
