"""Calls of operators with lists (`_foreach_add_`) that are made for each tensor of the list."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from calque.device.memory.cell import cell_of


def apart(targets: Sequence[torch.Tensor], args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields the arguments of a call with lists, separately for each tensor if targets share
    memory.

    In that case, later tensors must see the writes to earlier ones.
    """
    places = {cell_of(tensor): i for i, tensor in enumerate(targets)}
    lists = [a for a in args if isinstance(a, list | tuple)]
    others = [
        (i, one)
        for each in lists
        for i, one in enumerate(each)
        if isinstance(one, torch.Tensor) and one.device.type == "jax"
    ]
    if len(places) == len(targets) and all(places.get(cell_of(t), i) == i for i, t in others):
        yield (targets, *args)
        return
    for i in range(len(targets)):
        yield ([targets[i]], *(_part(a, i) for a in args))


def one_by_one(
    operator: Callable[..., Any],
    targets: Sequence[torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Call an operator for each target on the target's own device, as PyTorch does for lists with
    tensors of several devices.

    An optimizer has such a list if it counts the steps of some parameters on the CPU, and those of
    others, which a jitted function has stepped before, on the device.
    """
    for i in range(len(targets)):
        named = {name: _part(value, i) for name, value in kwargs.items()}
        operator([targets[i]], *(_part(a, i) for a in args), **named)


def _part(argument: Any, i: int) -> Any:
    """Returns the part of an argument that belongs to one tensor of the list."""
    if isinstance(argument, list | tuple):
        return [argument[i]]
    packed = isinstance(argument, torch.Tensor) and argument.ndim == 1
    return argument[i : i + 1] if packed else argument
