"""What an optimizer loads lies where its parameter lies.

A file has no placements, and what `Optimizer.load_state_dict` takes from one would be whole on one
device. Tensors of a parameter's shape are placed as they are taken, one at a time.
"""

import functools
from typing import Any

import torch

from calque.device.backend.placed_gradients import placed_like
from calque.device.memory.placing import placement_like
from calque.upstream.torch_internals import Optimizer


def install() -> None:
    """Have optimizers place what they load."""
    theirs = Optimizer._process_value_according_to_param_policy

    @functools.wraps(theirs)
    def process(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = theirs(param, value, *args, **kwargs)
        placement = placement_like(param)
        if placement is None or found.shape != param.shape or not found.ndim:
            return found
        with torch.no_grad():
            return placed_like(found, placement)

    Optimizer._process_value_according_to_param_policy = staticmethod(process)  # type: ignore[method-assign]
