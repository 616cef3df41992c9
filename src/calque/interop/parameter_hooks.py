"""The hooks of a module's parameters, for the tensors that stand in for these in a trace."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def hooks_of(module: torch.nn.Module | None) -> tuple[int, ...]:
    """Returns which hooks the parameters of a module have."""
    if module is None:
        return ()
    return tuple(
        id(hook)
        for parameter in module.parameters()
        for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        for hook in (hooks or {}).values()
    )


def register_hooks(module: torch.nn.Module, stand_ins: Mapping[str, torch.Tensor]) -> None:
    """Give tensors the hooks of the parameters that they stand in for.

    What runs when a gradient has been accumulated has no place in a pure function, so there the
    backward raises.
    """
    for name, parameter in module.named_parameters(remove_duplicate=False):
        stand_in = stand_ins.get(name)  # of tied parameters, one name may be missing
        if stand_in is None or not stand_in.requires_grad:
            continue
        for hook in (parameter._backward_hooks or {}).values():
            stand_in.register_hook(hook)
        if parameter._post_accumulate_grad_hooks:
            stand_in.register_hook(_refusal(name))


def _refusal(name: str) -> Callable[[torch.Tensor], Any]:
    def refuse(_: torch.Tensor) -> None:
        raise RuntimeError(
            f"the parameter {name!r} has a hook that runs when its gradient has been accumulated, "
            "and a pure function accumulates none; use register_hook"
        )

    return refuse
