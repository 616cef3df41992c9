"""An operator that changes a tensor's placement; autograd and all tracers support it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax.sharding import Sharding

from calque.device.kernels.custom import op
from calque.device.runtime.placement import spread
from calque.ops.table.facts import facts

NAME = "calque_sharding::constrain"
Place = Sharding | Callable[[tuple[int, ...]], Sharding | None]
"""A placement, or a function that returns one for a shape, or None to leave a value unchanged."""

_placements: list[Place] = []
_numbers: dict[Place, int] = {}
_library: list[torch.library.Library] = []


def constrained(tensor: torch.Tensor, placement: Sharding) -> torch.Tensor:
    """Returns the tensor with a placement; its gradient gets the same placement.

    Args:
        tensor: a tensor of the device, of any shape that the placement can split.
        placement: the placement.
    """
    number = number_of(placement)  # also defines the operator
    return torch.ops.calque_sharding.constrain(tensor, number)


def number_of(placement: Place) -> int:
    """Returns the number by which `calque_sharding::constrain` refers to a placement."""
    if not _library:
        _define()
    spread.exists = True
    number = _numbers.get(placement)
    if number is None:
        number = _numbers[placement] = len(_placements)
        _placements.append(placement)
    return number


def _define() -> None:
    library = torch.library.Library("calque_sharding", "DEF")
    library.define("constrain(Tensor x, int placement) -> Tensor")
    _library.append(library)

    def destination(args: Sequence[Any]) -> Sharding | None:
        found = _placements[args[1]]
        return found if isinstance(found, Sharding) else found(tuple(args[0].shape))

    facts(NAME, destination=destination)

    @op(NAME)
    def constrain(x: Any, placement: int) -> Any:
        found = _placements[placement]
        if not isinstance(found, Sharding):
            found = found(x.shape)
        return x if found is None else jax.lax.with_sharding_constraint(x, found)
