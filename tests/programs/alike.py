"""The same random numbers on every device, so that two runs of a program can be compared.

Random numbers are drawn on the CPU and moved, and dropout is off. A program on the device draws
from JAX's generators otherwise, which have other numbers for the same seed.
"""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

_CREATE = ("rand", "randint", "randn", "randperm")
_LIKE = ("bernoulli", "multinomial", "normal", "rand_like", "randint_like", "randn_like")
_IN_PLACE = ("bernoulli_", "exponential_", "normal_", "random_", "uniform_")


def _created(draw: Callable[..., Any]) -> Callable[..., Any]:
    @torch.compiler.disable
    def call(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None) or torch.get_default_device()
        return draw(*args, **kwargs, device="cpu").to(device)

    return call


def _from_tensors(draw: Callable[..., Any]) -> Callable[..., Any]:
    @torch.compiler.disable
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        device = kwargs.pop("device", None) or (tensors[0].device if tensors else "cpu")
        args, kwargs = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.detach().cpu(), (args, kwargs)
        )
        return draw(*args, **kwargs).to(device)

    return call


def _in_place(draw: Callable[..., Any]) -> Callable[..., Any]:
    @torch.compiler.disable
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type in ("cpu", "meta"):
            return draw(self, *args, **kwargs)
        with torch.no_grad():
            self.copy_(draw(torch.empty_like(self, device="cpu"), *args, **kwargs))
        return self

    return call


def _without_dropout(attention: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *rest: Any,
        **named: Any,
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, *rest, **named)

    return call


def _recurrent(init: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{**kwargs, "dropout": 0.0})

    return call


@contextmanager
def same_random_numbers() -> Any:
    """Within, programs draw the same numbers on every device, and drop nothing out."""
    made = [(torch, name, _created) for name in _CREATE]
    made += [(torch, name, _from_tensors) for name in _LIKE]
    made += [(torch.Tensor, name, _from_tensors) for name in ("bernoulli", "multinomial")]
    made += [(torch.Tensor, name, _in_place) for name in _IN_PLACE]
    made += [
        (F, "scaled_dot_product_attention", _without_dropout),
        (nn.RNNBase, "__init__", _recurrent),
    ]
    with ExitStack() as stack:
        for owner, name, wrap in made:
            stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"):
            stack.enter_context(mock.patch.object(F, name, _kept))
        yield


def _kept(input: Any, *_: Any, **__: Any) -> Any:
    return input
