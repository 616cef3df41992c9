"""Backward passes of many gradients at once: `torch.autograd.grad(..., is_grads_batched=True)`, and
under `torch.func.vmap`.

Such a gradient has a hidden axis. The program runs separately for each gradient.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    add_batch_dim,
    remove_batch_dim,
    temporarily_pop_interpreter_stack,
)

Tensor = torch.Tensor
_functorch = torch_c.functorch
_MOST_LEVELS = 64


def is_batched(value: object) -> bool:
    """Returns True if a value is a tensor with a hidden axis."""
    return isinstance(value, Tensor) and (
        _functorch.is_batchedtensor(value) or _functorch.is_legacy_batchedtensor(value)
    )


def batched(
    run: Callable[[tuple[Tensor | None, ...]], list[Tensor | None]],
    incoming: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Returns the gradients for incoming ones, some of which have a hidden axis.

    Args:
        run: computes the gradients for incoming ones without the axis.
        incoming: the incoming gradients.
    """
    first = next(gradient for gradient in incoming if is_batched(gradient))
    is_legacy = _functorch.is_legacy_batchedtensor(first)
    level = _legacy_level(first) if is_legacy else _functorch.current_level()
    stacks = [_stack(gradient, level) if is_batched(gradient) else None for gradient in incoming]
    (count,) = {len(stack) for stack in stacks if stack is not None}
    with nullcontext() if is_legacy else temporarily_pop_interpreter_stack():
        rows = [
            run(tuple(g if s is None else s[i] for g, s in zip(incoming, stacks, strict=True)))
            for i in range(count)
        ]
        columns = [None if c[0] is None else torch.stack(c) for c in zip(*rows, strict=True)]
    add = add_batch_dim if is_legacy else _functorch._add_batch_dim
    return [None if column is None else add(column, 0, level) for column in columns]


def _legacy_level(gradient: Tensor) -> int:
    """Returns the level of `is_grads_batched` that created the axis, possibly in another thread."""
    for level in range(1, _MOST_LEVELS):
        if not is_batched(remove_batch_dim(gradient, level, 1, 0)):
            return level
    raise RuntimeError("calque.jit supports one batch of gradients, not batches of batches")


def _stack(gradient: Tensor, level: int) -> Tensor:
    """Returns a gradient with its hidden axis as the first axis."""
    if _functorch.is_legacy_batchedtensor(gradient):
        return remove_batch_dim(gradient, level, 1, 0)
    value, axis = _functorch._unwrap_batched(gradient, level)
    return value.movedim(axis, 0)
