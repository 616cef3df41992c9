"""Places the state that an optimizer loads like the parameters, and the tensors that a module loads
like those that they replace.

Files contain no placements, so tensors that `Optimizer.load_state_dict` loads would be whole on one
device. Instead, tensors of a parameter's shape are placed one at a time as they are loaded. So are
tensors that replace others in `Module.load_state_dict(..., assign=True)`; those on other devices
get the placement when they move to this one.
"""

import functools
from itertools import chain
from typing import Any

import torch
from jax.sharding import Sharding
from torch.nn import Module

from calque.device.backend.placed_gradients import placed_like
from calque.device.memory.cell import active, cell_of, current, is_whole
from calque.device.memory.placing import placement_like
from calque.device.runtime.pending_placements import pending, set_pending
from calque.device.runtime.placement import placed
from calque.device.runtime.replicated_values import naming
from calque.upstream.torch_internals import Optimizer

Tensor = torch.Tensor


def install() -> None:
    """Make optimizers and modules place the tensors that they load."""
    _optimizers()
    _modules()


def _optimizers() -> None:
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


def _modules() -> None:
    load = Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Module, *args: Any, **kwargs: Any) -> Any:
        before = _placements(self) if active.trace is None else {}
        found = load(self, *args, **kwargs)
        if before:
            now = dict(_named(self))
            for name, (tensor, placement) in before.items():
                if name in now and now[name] is not tensor:
                    with naming(name):
                        _take_over(now[name], tensor, placement)
        return found

    Module.load_state_dict = load_state_dict  # type: ignore[method-assign]


def _named(module: Module) -> Any:
    return chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )


def _placements(module: Module) -> dict[str, tuple[Tensor, Sharding]]:
    """Returns the parameters and buffers that have a placement, or will get one."""
    found = {}
    for name, tensor in _named(module):
        placement = pending(tensor) or placement_like(tensor)
        if placement is not None:
            found[name] = tensor, placement
    return found


def _take_over(tensor: Tensor, before: Tensor, placement: Sharding) -> None:
    """Give a tensor without a placement the placement of the one that it replaces."""
    if tensor.shape != before.shape:
        return
    if tensor.device.type != "jax":
        set_pending(tensor, placement)
    elif placement_like(tensor) is None:
        cell = cell_of(tensor)
        if not cell.viewed or is_whole(cell, tensor):
            cell.array = placed(current(cell), placement)
        else:
            tensor.data = placed_like(tensor.detach(), placement)
